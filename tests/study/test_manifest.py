"""`study.json`: what was asked for, part by part, and which run is which; and the report that is made of it."""

from __future__ import annotations

import json
import re

from typer.testing import CliRunner

from celm import __version__
from celm.cli.app import app
from celm.records.study_records import read_study_manifest
from celm.report.build import build_report
from celm.study.plan import plan_runs
from celm.study.scales import Scale
from celm.study.spec import load_study
from celm.study.study_folder import write_study_manifest


def test_a_study_says_what_was_asked_for(tmp_path):
    study = load_study("fidelity")
    cells = plan_runs(study, Scale.smoke, tmp_path)
    write_study_manifest(study, "fidelity", Scale.smoke, tmp_path, cells.values(), "split=pls")
    asked = read_study_manifest(tmp_path / "study.json")
    assert asked.commands == [["celm", "study", "fidelity", "--scale", "smoke", "--only", "split=pls"]]
    assert (asked.study, asked.scale, asked.seeds, asked.version) == ("fidelity", "smoke", [42], __version__)
    assert asked.about == study.about
    assert {place: (c.row, c.method, c.seed) for place, c in asked.cells.items()} == {
        str(cell.folder.relative_to(tmp_path)): key for key, cell in cells.items()
    }


def test_parts_come_together_until_the_whole_is_asked_for(tmp_path):
    def after(only, scale=Scale.smoke):
        study = load_study("iid")
        write_study_manifest(study, "iid", scale, tmp_path, plan_runs(study, scale, tmp_path).values(), only)
        return read_study_manifest(tmp_path / "study.json").only

    assert after("method=celm") == ["method=celm"]
    assert after("method=cffl") == ["method=celm", "method=cffl"]
    assert after("method=celm") == ["method=celm", "method=cffl"]
    assert after("method=celm", Scale.quick) == ["method=celm"]
    assert after("") == []
    assert after("method=celm") == []
    (tmp_path / "study.json").write_text("damaged")
    assert after("method=celm") == ["method=celm"]


def test_a_study_and_its_report(tmp_path):
    """Rows that are the same at this scale are apart, and so are runs of equal settings."""
    arguments = [
        "study",
        "iid",
        "--scale=smoke",
        f"--out={tmp_path}",
        "--workers=1",
        "--only=method=celm,fedavg",
    ]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    page = build_report(tmp_path)
    places = re.findall('<td class="folder">([^<]*)<', page)
    assert sorted(places) == sorted(
        f"cells/{dataset}_iid-{method}-seed42"
        for dataset in ("fashion_mnist", "cifar10")
        for method in ("celm", "fedavg")
    )
    assert "4 finished runs of 10." in page
    assert "celm study iid" in page
    assert "method=celm,fedavg" in page


def test_a_comparison_says_how_to_repeat_it(tmp_path):
    arguments = ["compare", "--methods=fedavg,celm", "--seeds=1", "--clients=3", "--rounds=2", "--workers=1"]
    arguments += ["--set", "probe.steps=5", f"--out={tmp_path}"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    asked = read_study_manifest(tmp_path / "study.json")
    said = "celm compare --methods fedavg,celm --seeds 1 --clients 3 --rounds 2 --set probe.steps=5"
    assert asked.commands == [said.split()]
    assert asked.cells["celm-seed1"].row == "digits, frm"
    assert json.loads((tmp_path / "errors.json").read_text()) == {}
    # What it says is the same comparison.
    again = CliRunner().invoke(app, [*asked.command[1:], f"--out={tmp_path}", "--format=json"])
    assert again.exit_code == 0, again.stderr
    assert "2 finished runs of 2." in build_report(tmp_path)
