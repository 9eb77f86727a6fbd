"""`celm.compare` and `celm.study` from Python, their results as objects, and grids."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.axes
import pytest

import celm
from celm.experiment.config import Experiment
from celm.study.compare import make_plan, parse_grid

SMALL = {"clients": 3, "rounds": 2, "probe": {"steps": 2}, "train": {"batch": 32}}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> celm.Comparison:
    folder = tmp_path_factory.mktemp("compare") / "grid"
    grid = {"split.alpha": [0.1, 1.0]}
    return celm.compare(
        ["fedavg", "celm"], [1, 2], grid=grid, split="dirichlet", out=folder, workers=2, **SMALL
    )


def test_cells_are_those_of_single_runs(comparison: celm.Comparison, tmp_path: Path) -> None:
    alone = celm.run(
        Experiment(split={"name": "dirichlet", "alpha": 1.0}, rule="celm", seed=2, **SMALL),
        tmp_path / "alone",
    )
    row = next(row for row in comparison.rows if "alpha=1.0" in row)
    assert comparison.run("celm", 2, row).rounds == alone.rounds
    frame = comparison.to_dataframe()
    assert len(frame) == 2 * 2 * 2
    cell = frame[(frame["split.alpha"] == 1.0) & (frame["method"] == "celm") & (frame["seed"] == 2)]
    assert cell["accuracy"].item() == alone.accuracy


def test_table_has_the_means_of_the_data_frame(comparison: celm.Comparison) -> None:
    assert comparison.table is not None
    frame = comparison.to_dataframe()
    means = frame.groupby(["split.alpha", "method"])["accuracy"].mean()
    for cell in comparison.table.cells:
        if cell.row.endswith(" accuracy") and "balanced" not in cell.row:
            alpha = float(cell.row.split()[0].partition("=")[2])
            assert cell.mean == pytest.approx(means[alpha, cell.column])


@pytest.mark.parametrize("name", ["comparison", "accuracy", "weights"])
def test_figures_are_axes(comparison: celm.Comparison, name: str) -> None:
    assert isinstance(getattr(comparison, f"plot_{name}")(), matplotlib.axes.Axes)
    assert isinstance(getattr(comparison, f"plot_{name}")(row=comparison.rows[0]), matplotlib.axes.Axes)


def test_weights_and_paired_differences_are_data_frames(comparison: celm.Comparison) -> None:
    weights = comparison.contributions()
    assert len(weights) == 8 * 3
    assert weights.groupby(["row", "method", "seed"])["weight"].sum().tolist() == pytest.approx([1.0] * 8)
    differences = comparison.differences()
    found = differences[differences["metric"] == "accuracy"].set_index("row")
    frame = comparison.to_dataframe().set_index(["row", "method"])["accuracy"]
    assert len(found) == 2
    for row, cell in found.iterrows():
        assert (cell["method"], cell["minus"], cell["seeds"]) == ("celm", "fedavg", 2)
        assert cell["difference"] == pytest.approx(frame[row, "celm"].mean() - frame[row, "fedavg"].mean())


def test_figures_are_beside_the_tables(comparison: celm.Comparison) -> None:
    names = {path.name for path in comparison.folder.glob("*.svg")}
    assert names == {f"{name}-{i}.svg" for name in ("accuracy", "curves", "weights") for i in (1, 2)}
    assert all((comparison.folder / name).with_suffix(".pdf").read_bytes()[:4] == b"%PDF" for name in names)


def test_load_and_report(comparison: celm.Comparison, tmp_path: Path) -> None:
    loaded = celm.load(comparison.folder)
    assert isinstance(loaded, celm.Comparison)
    assert loaded.to_dataframe().equals(comparison.to_dataframe())
    assert "fedavg" in loaded._repr_html_()
    assert "8 of 8 runs" in repr(loaded)
    assert loaded.report(tmp_path / "page.html").is_file()
    assert "--grid" in (loaded.manifest.command if loaded.manifest else [])


def test_what_is_missing_is_run_and_the_rest_is_not(comparison: celm.Comparison) -> None:
    results = sorted(comparison.folder.glob("*/result.json"))
    results[0].unlink()
    partly = celm.load(comparison.folder)
    assert "7 of 8 runs" in repr(partly)
    assert len(partly.to_dataframe()) == 7
    stamps = {path: path.stat().st_mtime_ns for path in results[1:]}
    grid = {"split.alpha": [0.1, 1.0]}
    again = celm.compare(
        ["fedavg", "celm"], [1, 2], grid=grid, split="dirichlet", out=comparison.folder, workers=1, **SMALL
    )
    assert "8 of 8 runs" in repr(again)
    assert {path: path.stat().st_mtime_ns for path in results[1:]} == stamps


def test_unknown_row_method_and_seed_are_named(comparison: celm.Comparison) -> None:
    with pytest.raises(celm.CelmError, match="no finished run in row"):
        comparison.plot_accuracy(row="digits")
    with pytest.raises(celm.CelmError, match=r"no finished run of 'clem'"):
        comparison.run("clem", 1, comparison.rows[0])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"methods": "celm"}, "methods must be a list"),
        ({"methods": []}, "methods must be a list"),
        ({"methods": ["celm", "celm"]}, "without duplicates"),
        ({"methods": ["clem"]}, "unknown method 'clem'"),
        ({"seeds": [1.5]}, "whole numbers"),
        ({"seed": 1}, "seeds="),
        ({"grid": {"splt.alpha": [1]}}, "unknown setting 'splt.alpha'"),
        ({"grid": {"split.alpha": 0.1}}, "list of values"),
        ({"grid": {"run.seed": [1]}}, "not a setting of a grid"),
        ({"grid": {"train.batch": [8, 8]}}, "same value twice"),
        ({"rule": "clem"}, "unknown rule 'clem'"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path: Path, arguments: dict[str, object], match: str) -> None:
    with pytest.raises(celm.CelmError, match=match):
        celm.compare(**{"methods": ["celm"], "out": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


def test_grids_of_the_command_line_are_parsed() -> None:
    assert parse_grid(["train.decay_at=[1, 2],[3]"]) == {"train.decay_at": [[1, 2], [3]]}
    with pytest.raises(celm.CelmError, match="--grid"):
        parse_grid(["split.alpha"])
    with pytest.raises(celm.CelmError, match="twice"):
        parse_grid(["a.b=1", "a.b=2"])


def test_folder_and_title_say_what_differs_from_the_defaults(tmp_path: Path) -> None:
    def plan(**settings: object):
        return make_plan(Experiment(**settings), ["celm"], [1])

    assert str(plan(split="pls").folder) == "compare/digits-pls"
    alpha = plan(split={"name": "dirichlet", "alpha": 0.05}, train={"batch": 32})
    assert str(alpha.folder) == "compare/digits-dirichlet-0.05-batch-32"
    assert alpha.title == "digits, dirichlet 0.05, batch 32, 100 rounds, seeds 1"
    assert plan(split={"name": "dirichlet", "alpha": 0.5}).folder != plan(split="dirichlet").folder
    assert (
        str(plan(dataset={"name": "folder", "path": "/data/birds"}, split="iid").folder)
        == "compare/birds-iid"
    )


def test_study_is_run_from_python(tmp_path: Path) -> None:
    only = "dataset=fashion_mnist split=pls method=fedavg"
    study = celm.study("main", scale="smoke", only=only, out=tmp_path / "study", workers=1)
    assert isinstance(celm.load(tmp_path / "study"), celm.Study)
    assert study.methods == ["fedavg"]
    assert study.table is not None
    assert study.to_dataframe()["accuracy"].item() == study.table.cells[0].mean
    with pytest.raises(celm.CelmError, match="unknown scale 'smal'"):
        celm.study("main", scale="smal")


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import celm\n"
        "print('started')\n"
        "both = celm.compare(['fedavg'], [1, 2], clients=3, rounds=1, out='both', workers=2)\n"
        "alone = celm.run(celm.Experiment(rule='fedavg', clients=3, rounds=1, seed=1, workers=2), 'alone')\n"
        "print(alone.accuracy == both.to_dataframe()['accuracy'][0])\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "started\nTrue\n"
    assert json.loads((tmp_path / "both" / "study.json").read_text())["command"][:2] == ["celm", "compare"]
