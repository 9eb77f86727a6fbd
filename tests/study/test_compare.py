"""`celm compare`: the grid, its resumption, its failures, and the paper's figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from celm.base.errors import CelmError
from celm.federation.assembly import resolve
from celm.federation.experiment import Experiment
from celm.federation.presets import with_preset
from celm.study.compare import compare_cells, parse_method
from celm.study.grid import run_grid
from celm.study.paper import paper_figure
from celm.study.processes import Processes

SMALL = {
    "dataset": {"name": "digits"},
    "split": {"name": "pls", "clients": 3},
    "train": {"batch": 32},
    "probe": {"steps": 5},
    "run": {"rounds": 3},
}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("celm", ("celm", "plain")),
        ("celm+fedrs", ("celm", "fedrs")),
        ("moon", ("fedavg", "moon")),
        ("fedavg+plain", ("fedavg", "plain")),
    ],
)
def test_methods_are_rules_objectives_or_both(method, expected):
    assert parse_method(method) == expected


@pytest.mark.parametrize("method", ["clem", "celm+fedsr", "moon+celm", "+", ""])
def test_unknown_methods_are_refused_by_name(method):
    with pytest.raises(CelmError, match="unknown"):
        parse_method(method)


def paper(
    dataset: object,
    split: object,
    rule: object,
    metric: str = "accuracy",
    objective: str = "plain",
    **settings: object,
) -> str | None:
    tables = {"dataset": dataset, "split": split, "rule": rule, "objective": objective}
    figure = paper_figure(resolve(Experiment.parse({**tables, **settings})), metric)
    return figure and figure.shown()


def test_the_papers_figures_are_found_for_the_same_cell_only():
    assert paper("fashion_mnist", "pls", "celm") == "83.70 ± 0.19"
    assert paper("fashion_mnist", "pls", "celm", objective="fedrs") == "85.82 ± 0.24"
    assert paper("fedisic_features", "natural", "celm", "balanced_accuracy") == "70.18 ± 0.58"
    assert paper("emnist47", "sls", "cffl") == "86.18 ± 0.45"
    assert paper("fashion_mnist", "pls", "fedavg", objective="moon") == "80.67 ± 0.29"
    assert paper("fashion_mnist", {"name": "dirichlet", "alpha": 0.05}, "cgsv") == "46.30 ± 3.34"
    assert (
        paper("fashion_mnist", {"name": "dirichlet", "alpha": 0.05, "clients": 20}, "cgsv") == "45.50 ± 7.84"
    )
    assert paper("fashion_mnist", "maverick", "celm", "rare_class_accuracy") == "90.77 ± 0.24"
    assert paper("fashion_mnist", "maverick", "celm", "balanced_accuracy") == "87.32 ± 0.10"
    assert paper("fashion_mnist", "iid", "fedavg") == "89.23 ± 0.09"
    assert paper("fashion_mnist", {"name": "pls", "clients": 7}, "celm") is None
    assert paper("fashion_mnist", "maverick", "celm") is None
    assert paper("digits", "pls", "celm") is None
    assert paper("fashion_mnist", "pls", "shapley") is None


def test_what_is_not_the_papers_experiment_is_not_set_beside_it():
    known = "83.70 ± 0.19"
    assert paper("fashion_mnist", "pls", "celm", run={"workers": 2, "evaluate_every": 10}) == known
    assert paper("fashion_mnist", "pls", {"name": "cffl", "sharpen": "share"}, "accuracy") == "80.95 ± 1.81"
    assert paper({"name": "folder", "path": "scans"}, "natural", "celm") is None
    assert paper("fashion_mnist", "pls", "celm", run={"rounds": 1}) is None
    assert paper("fashion_mnist", "pls", "celm", train={"lr": 0.05}) is None
    assert paper("fashion_mnist", "pls", {"name": "celm", "evidence": "calibrated"}) is None
    assert paper("fashion_mnist", {"name": "pls", "seed": 7}, "celm") is None
    assert paper({"name": "fashion_mnist", "limit": 50}, "pls", "celm") is None


def test_preset_fills_gaps_and_never_overrides():
    assert with_preset({"objective": "fedprox"}, "paper")["objective"] == {"name": "fedprox", "mu": 1.0}
    said = {"objective": {"name": "fedprox", "mu": 0.1}}
    assert with_preset(said, "paper") == said
    assert with_preset({"objective": "fedprox"}, None) == {"objective": "fedprox"}
    with pytest.raises(CelmError, match=r"unknown preset 'papr' .did you mean 'paper'"):
        with_preset({}, "papr")


def cells_in(folder, methods=("fedavg", "celm"), seeds=(1, 2)):
    return compare_cells(Experiment.parse(SMALL), methods, seeds, folder, None)


def test_grid_gives_what_single_runs_give_whatever_the_number_of_processes(tmp_path):
    import celm

    cells = cells_in(tmp_path / "grid")
    outcomes = run_grid(list(cells.values()), lambda: Processes(2))
    assert all(outcome.error is None for outcome in outcomes)
    one = cells["celm", 2]
    alone = celm.run(one.experiment, out=tmp_path / "alone")
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (one.place / name).read_bytes() == (alone.folder / name).read_bytes()


def test_finished_cells_are_not_run_again_and_others_settings_are_refused(tmp_path):
    cells = list(cells_in(tmp_path, methods=("fedavg",)).values())
    run_grid(cells, lambda: Processes(1))
    stamps = [(cell.place / "result.json").stat().st_mtime_ns for cell in cells]
    run_grid(cells, lambda: Processes(1))
    assert stamps == [(cell.place / "result.json").stat().st_mtime_ns for cell in cells]
    other = Experiment.parse({**SMALL, "train": {"batch": 16}})
    changed = list(compare_cells(other, ["fedavg"], [1, 2], tmp_path, None).values())
    with pytest.raises(CelmError, match=r"other settings .train"):
        run_grid(changed, lambda: Processes(1))


def test_a_cell_that_fails_is_named_and_the_rest_goes_on(tmp_path):
    cells = list(cells_in(tmp_path).values())
    broken = cells[1]
    broken.place.mkdir(parents=True)
    (broken.place / "settings.toml").write_text(broken.experiment.to_toml())
    (broken.place / "checkpoints").mkdir()
    (broken.place / "checkpoints" / "round-000001.safetensors").write_bytes(b"not a checkpoint")
    outcomes = run_grid(cells, lambda: Processes(2))
    assert [outcome.result is not None for outcome in outcomes] == [True, False, True, True]
    assert "damaged" in outcomes[1].error


def compare(folder, *more: str) -> list[str]:
    settings = [
        "--set=train.batch=32",
        "--set=probe.steps=5",
        "--clients=3",
        "--seeds=1,2",
        f"--out={folder}",
    ]
    return [sys.executable, "-m", "celm", "compare", "--methods=fedavg,celm,moon", *settings, *more]


def test_command_prints_one_json_document_and_saves_the_tables(tmp_path):
    done = subprocess.run(
        compare(tmp_path / "out", "--rounds=2", "--format=json"), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert [cell["row"] for cell in found["cells"] if cell["column"] == "accuracy"] == [
        "fedavg",
        "celm",
        "moon",
    ]
    assert all(cell["count"] == 2 for cell in found["cells"])
    names = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert names == {"table.md", "table.tex", "table.csv", "table.json", "study.json", "errors.json"}


@pytest.mark.slow
def test_killed_comparison_goes_on_with_what_is_missing_and_leaves_no_process(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(compare(whole, "--rounds=30"), capture_output=True, check=True)
    process = subprocess.Popen(
        compare(broken, "--rounds=30"), stdout=subprocess.DEVNULL, start_new_session=True
    )
    while not list(broken.glob("*/checkpoints/round-000005*")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(process.pid)
    subprocess.run(compare(broken, "--rounds=30"), capture_output=True, check=True)
    for path in whole.rglob("rounds.jsonl"):
        assert path.read_bytes() == (broken / path.relative_to(whole)).read_bytes()
    assert (whole / "table.json").read_text() == (broken / "table.json").read_text()


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
