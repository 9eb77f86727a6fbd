"""Pages of unusual runs: personal models, observers, partial participation, one client."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import celm
from celm.base.errors import CelmError
from celm.records.checksums import files_sha256, values_sha256
from celm.report.build import build_report
from support.pages import Page, safe


def page_of(folder: Path, **settings: Any) -> Page:
    tables = {
        "dataset": {"name": "digits", "limit": 30},
        "model": {"name": "mlp", "widths": [16]},
        "probe": {"steps": 5},
        "train": {"batch": 16},
        **settings,
    }
    tables["run"] = {"rounds": 3, **tables.get("run", {})}
    celm.run(celm.Experiment.parse(tables), out=folder)
    page = Page(build_report(folder))
    safe(page)
    return page


def seal_result(folder: Path) -> None:
    """Write the checksums of changed files into result.json."""
    path = folder / "result.json"
    values = json.loads(path.read_text()) | {"files": files_sha256(folder)}
    path.write_text(json.dumps(values | {"sha256": values_sha256(values)}))


def alternatives(page: Page) -> list[str]:
    return [value or "" for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]


def test_clients_with_models_of_their_own(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", rule="standalone")
    assert "Mean over the clients' own models, on the test data." in page.text
    assert "Mean over the clients' own models, last round" in page.text
    assert "lobal model" not in page.text
    own = json.loads((tmp_path / "run" / "result.json").read_text())["client_accuracy"]
    for client, accuracy in own.items():
        assert (
            f"{client}: 20.0 % of the weight; accuracy of its own model {100 * accuracy:.1f} %" in page.text
        )


def test_a_common_model_is_called_so(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", rule="fedavg")
    assert "Global model, on the test data." in page.text
    assert "own model" not in page.text
    assert "The same in every round." in page.text
    assert "rozen" not in page.text.replace("cache_frozen", "")


def test_evidence_of_an_observer_is_shown(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", rule="fedavg", observe=["shapfed", "celm"])
    assert "Measured by the observer celm." in page.text
    assert "the rule fedavg sets the weights" in page.text
    assert "20.0 % of the weight; evidence for" in page.text
    assert any(
        label.startswith("Heatmap of evidence, 5 clients by 10 classes.") for label in alternatives(page)
    )


def test_damaged_evidence_of_an_observer_is_named(tmp_path: Path) -> None:
    page_of(tmp_path / "run", rule="fedavg", observe=["celm"])
    path = tmp_path / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if evidence := line["observed"]["celm"]["evidence"]:
            evidence["client-0"] = [1.0]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(CelmError, match=r"rounds\.jsonl is damaged: evidence"):
        build_report(tmp_path / "run")


@pytest.mark.parametrize(
    ("rule", "meaning"),
    [
        ({}, "above the global model's mean logit."),
        ({"debias": False}, "Evidence is the logit that the probe reaches"),
        ({"evidence": "calibrated"}, "in units of its variation on noise."),
    ],
)
def test_evidence_is_what_the_rule_makes_it(tmp_path: Path, rule: dict[str, Any], meaning: str) -> None:
    page = page_of(tmp_path / "run", rule={"name": "celm", **rule})
    assert meaning in page.text
    assert page.text.count("Evidence is ") == 1


def test_clients_that_never_came(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", split={"name": "iid", "clients": 10}, run={"participation": 0.2})
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    came = {client for record in records for client in record["clients"]}
    probed = {client for record in records for client in record["evidence"] or {}}
    absent = [f"client-{i}" for i in range(10) if f"client-{i}" not in came]
    assert len(absent) >= 4
    for client in absent:
        assert re.search(rf"{client}: [\d.]+ % of the weight; did not take part in any round", page.text)
    assert page.text.count("did not take part in any round") == len(absent)
    assert "which classes the probed clients hold" in page.text
    heat = [label for label in alternatives(page) if label.startswith("Heatmap of evidence")]
    assert all(f"{len(probed)} client" in label for label in heat)
    assert any("Bubble plot of samples, 10 clients by 10 classes." in a for a in alternatives(page))


def test_rounds_are_those_in_which_an_update_counted(tmp_path: Path) -> None:
    page_of(tmp_path / "run", split={"name": "iid", "clients": 3})
    path = tmp_path / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["excluded"] = {"client-1": "is late"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal_result(tmp_path / "run")
    text = build_report(tmp_path / "run")
    rows = re.findall(r'<th scope="row"><bdi[^>]*>(client-\d)</bdi></th>.*?</tr>', text, re.S)
    weights = json.loads((tmp_path / "run" / "result.json").read_text())["weights"]
    assert rows[:3] == sorted(weights, key=lambda client: -weights[client])
    cells = re.search(r">client-1</bdi></th>(.*?)</tr>", text, re.S)
    assert cells is not None
    assert re.findall(r"<td>([^<]*)</td>", cells[1])[-2:] == ["2", "1"]  # rounds, excluded


def test_one_client_and_one_round(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", split={"name": "iid", "clients": 1}, run={"rounds": 1})
    assert "1 client trained MLP for 1 round with celm" in page.text
    assert "sole evidence for class" not in page.text
    for words in ("1 clients", "1 rounds"):
        assert words not in " ".join([page.text, *alternatives(page)])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "rule": "fedavg",
            "objective": {"name": "fedprox", "mu": 0.5},
            "split": {"name": "dirichlet", "alpha": 0.5, "clients": 4, "seed": 7},
            "observe": [{"name": "celm", "warmup": 2}],
            "attack": {"name": "copy_global", "client": "client-1"},
            "run": {"participation": 0.5, "seed": 1},
        },
    ],
)
def test_the_command_on_the_page_reproduces_the_run(
    tmp_path: Path, settings: dict[str, Any], invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    page_of(folder, **settings)
    (line,) = re.findall(r"<code>(celm run [^<]*)</code>", build_report(folder))
    program, *arguments = shlex.split(html.unescape(line))
    assert program == "celm"
    monkeypatch.chdir(folder)
    done = invoke(*arguments, "--out", tmp_path / "again")
    assert done.exit_code == 0, done.output
    for name in ("rounds.jsonl", "settings.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
