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
from celm.experiment.config import Experiment
from celm.experiment.presets import with_preset
from celm.federation.build import resolve_defaults
from celm.study.local_pool import ProcessPool
from celm.study.paper_results import find_paper_statistic
from celm.study.plan import plan_comparison
from celm.study.results import RunOutcome
from celm.study.scheduler import run_all
from celm.study.spec import parse_method
from celm.study.study_tables import build_compare_table
from support.run_results import make_result

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
    experiment = resolve_defaults(Experiment.parse({**tables, **settings})).experiment
    figure = find_paper_statistic(experiment, metric)
    return figure and figure.format()


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
    return plan_comparison(Experiment.parse(SMALL), methods, seeds, folder, None)


def test_grid_gives_what_single_runs_give_whatever_the_number_of_processes(tmp_path):
    import celm

    cells = cells_in(tmp_path / "grid")
    outcomes = run_all(list(cells.values()), lambda: ProcessPool(2))
    assert all(outcome.error is None for outcome in outcomes)
    one = cells["celm", 2]
    alone = celm.run(one.experiment, out=tmp_path / "alone")
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (one.folder / name).read_bytes() == (alone.folder / name).read_bytes()


def test_finished_cells_are_not_run_again_and_others_settings_are_refused(tmp_path):
    cells = list(cells_in(tmp_path, methods=("fedavg",)).values())
    run_all(cells, lambda: ProcessPool(1))
    stamps = [(cell.folder / "result.json").stat().st_mtime_ns for cell in cells]
    run_all(cells, lambda: ProcessPool(1))
    assert stamps == [(cell.folder / "result.json").stat().st_mtime_ns for cell in cells]
    other = Experiment.parse({**SMALL, "train": {"batch": 16}})
    changed = list(plan_comparison(other, ["fedavg"], [1, 2], tmp_path, None).values())
    with pytest.raises(CelmError, match=r"other settings.*train"):
        run_all(changed, lambda: ProcessPool(1))


def test_a_cell_that_fails_is_named_and_the_rest_goes_on(tmp_path):
    cells = list(cells_in(tmp_path).values())
    broken = cells[1]
    broken.folder.mkdir(parents=True)
    (broken.folder / "settings.toml").write_text(broken.experiment.to_toml())
    (broken.folder / "checkpoints").mkdir()
    (broken.folder / "checkpoints" / "round-000001.safetensors").write_bytes(b"not a checkpoint")
    outcomes = run_all(cells, lambda: ProcessPool(2))
    assert [outcome.result is not None for outcome in outcomes] == [True, False, True, True]
    assert "damaged" in outcomes[1].error


def test_gains_are_over_the_standalone_run_of_the_same_seed(tmp_path):
    cells = cells_in(tmp_path, methods=("standalone", "fedavg", "cgsv"))
    alone = {1: [0.25, 0.5, 0.75], 2: [0.5, 0.5, 0.5]}

    def result(method: str, seed: int):
        own = {"standalone": alone[seed], "cgsv": [0.5, 0.75, 0.75]}.get(method)
        accuracy = None if own is None else {f"client-{i}": value for i, value in enumerate(own)}
        return make_result(accuracy=0.75, client_accuracy=accuracy)

    outcomes = {key: RunOutcome(cell, result(*key)) for key, cell in cells.items()}
    table = build_compare_table(outcomes, "gains")
    assert table.columns[-2:] == ["mean gain", "spread of gains"]
    # fedavg: gains (1/2, 1/4, 0), then 1/4 for each; cgsv: (1/4, 1/4, 0), then (0, 1/4, 1/4).
    assert table.ours["fedavg", "mean gain"].mean == pytest.approx(0.25)
    assert table.ours["fedavg", "spread of gains"].mean == pytest.approx((1 / 24) ** 0.5 / 2)
    assert table.ours["cgsv", "mean gain"].mean == pytest.approx(1 / 6)
    assert table.ours["cgsv", "spread of gains"].mean == pytest.approx((1 / 72) ** 0.5)
    assert ("standalone", "mean gain") not in table.ours
    assert not any(table.ours[key].is_incomplete for key in table.ours)
    without = {key: outcome for key, outcome in outcomes.items() if key[0] != "standalone"}
    assert "mean gain" not in build_compare_table(without, "no gains").columns


def compare(folder, *more: str) -> list[str]:
    settings = [
        "--set=train.batch=32",
        "--set=probe.steps=5",
        "--clients=3",
        "--seeds=1,2",
        f"--out={folder}",
    ]
    return [sys.executable, "-m", "celm", "compare", "--methods=fedavg,celm,moon", *settings, *more]


@pytest.mark.slow
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
    tables = {
        f"{name}.{kind}" for name in ("table", "contributions") for kind in ("md", "tex", "csv", "json")
    }
    figures = {f"{name}.{kind}" for name in ("accuracy", "curves", "weights") for kind in ("svg", "pdf")}
    differences = {f"differences.{kind}" for kind in ("md", "tex", "csv")}
    assert names == tables | figures | differences | {"study.json", "errors.json"}
    assert {cell["place"] for cell in found["cells"]} == {0}
    assert len(found["differences"]) == 3 * 3


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
