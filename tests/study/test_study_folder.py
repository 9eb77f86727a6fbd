"""What a study leaves in its folder when it is stopped, and when several processes write into it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from celm.report.build import build_report
from celm.runs.run import Run
from celm.study import results, study_folder
from celm.study.plan import GridKey, RunSpec, plan_runs
from celm.study.results import RunOutcome
from celm.study.scales import Scale
from celm.study.scheduler import GridProgress, run_one
from celm.study.spec import load_study
from celm.study.study_folder import StudyFolder

STUDY = """
title = "Two methods"
seeds = [1, 2]
[methods]
fedavg = {}
celm = {}
[[rows]]
dataset = "digits"
split = { name = "pls", clients = 3 }
run = { rounds = 1 }
"""


def done(cell: RunSpec) -> Future[None]:
    future: Future[None] = Future()
    run_one(cell)
    future.set_result(None)
    return future


class Interrupted:
    """A pool in this process; whoever wants a third run presses Ctrl-C."""

    size = 1

    def __init__(self) -> None:
        self.given = 0

    def submit(self, spec: RunSpec) -> Future[None]:
        self.given += 1
        if self.given == 3:
            raise KeyboardInterrupt
        return done(spec)

    def close(self) -> None:
        pass


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    (tmp_path / "two.toml").write_text(STUDY)
    return tmp_path / "two.toml"


def figures(folder: Path) -> dict[str, int]:
    cells = json.loads((folder / "table.json").read_text())["cells"]
    return {cell["column"]: cell["count"] for cell in cells}


def test_a_study_that_is_interrupted_leaves_a_table_and_a_report_of_what_was_done(
    declared: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celm.cli.study.make_pool", lambda *_: Interrupted())
    out = declared.parent / "out"
    assert invoke("study", declared, "--out", out).exit_code == 130
    assert figures(out) == {"fedavg": 2}
    assert "2 finished runs of 4." in build_report(out)


def test_a_study_that_could_not_begin_leaves_nothing(
    declared: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Interrupted()
    pool.given = 2
    monkeypatch.setattr("celm.cli.study.make_pool", lambda *_: pool)
    out = declared.parent / "out"
    assert invoke("study", declared, "--out", out).exit_code == 130
    assert [path.name for path in out.iterdir()] == ["cells"]


def prepared(declared: Path) -> tuple[StudyFolder, dict[GridKey, RunSpec], dict[GridKey, RunOutcome]]:
    study, out = load_study(str(declared)), declared.parent / "out"
    cells = plan_runs(study, Scale.paper, out)
    found = StudyFolder(study, str(declared), Scale.paper, out, "", cells)
    failed = {key: RunOutcome(cell, None, "out of luck") for key, cell in cells.items()}
    return found, cells, failed


def test_files_that_a_kill_left_half_written_are_removed(declared: Path) -> None:
    """Found by benchmarks/kills.py: a kill while the tables were written left one beside its place for ever."""
    folder, _, _ = prepared(declared)
    folder.path.mkdir()
    (folder.path / ".table.json.73272ef6.part").write_text('{"cells": [')
    folder.write({})
    assert not list(folder.path.glob(".*.part"))
    assert (folder.path / "table.json").exists()


def test_what_has_ended_is_written_now_and_then(declared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, cells, failed = prepared(declared)
    watch, errors = found.autosave(lambda _: None), declared.parent / "out" / "errors.json"
    standing = [GridProgress(list(cells.values()), list(failed.values())[:n], [], []) for n in range(3)]
    watch(standing[1])
    assert not errors.exists()
    monkeypatch.setattr(study_folder, "AUTOSAVE_SECONDS", 0.0)
    watch(standing[0])
    assert not errors.exists()
    watch(standing[2])
    assert len(json.loads(errors.read_text())) == 2
    assert (errors.parent / "study.json").is_file()
    errors.unlink()
    watch(standing[2])
    assert not errors.exists()  # nothing new


def test_no_run_is_measured_twice(declared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, cells, _ = prepared(declared)
    measured: list[str] = []
    measure = results.compute_metric

    def counting(metric: str, run: Run) -> float | None:
        measured.append(run.folder.name)
        return measure(metric, run)

    monkeypatch.setattr(results, "compute_metric", counting)
    for cell in list(cells.values())[:2]:
        run_one(cell)
        found.write({})
    assert measured == [cell.folder.name for cell in list(cells.values())[:2]]
    assert figures(declared.parent / "out") == {"fedavg": 2}


def test_who_writes_last_has_seen_what_others_finished(
    declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is slow to write must not overwrite the table of one that saw more."""
    slow, quick = prepared(declared)[0], prepared(declared)[0]
    has_gathered, may_write, gather = threading.Event(), threading.Event(), study_folder.merge_existing

    def waiting(*arguments: Any) -> Any:
        seen = gather(*arguments)
        if threading.current_thread() is thread:
            has_gathered.set()
            may_write.wait(3)
        return seen

    monkeypatch.setattr(study_folder, "merge_existing", waiting)
    thread = threading.Thread(target=lambda: slow.write({}))
    run_one(slow.specs[first := next(iter(slow.specs))])
    thread.start()
    has_gathered.wait()
    for key, cell in quick.specs.items():
        if key != first:
            run_one(cell)
    quick.write({})
    may_write.set()
    thread.join()
    assert figures(declared.parent / "out") == {"fedavg": 2, "celm": 2}


def test_what_failed_here_and_another_process_finished_is_done(declared: Path) -> None:
    found, cells, failed = prepared(declared)
    first, second = list(cells)[:2]
    run_one(cells[first])
    told = found.write({first: failed[first], second: failed[second]})
    assert figures(declared.parent / "out") == {"fedavg": 1}
    assert list(told.failed.values()) == ["out of luck"]


def test_that_nothing_can_be_written_does_not_stop_the_study_nor_whoever_stops_it(
    declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, cells, failed = prepared(declared)
    monkeypatch.setattr(study_folder, "AUTOSAVE_SECONDS", 0.0)
    monkeypatch.setattr(study_folder, "LOCK_TIMEOUT_SECONDS", 0.05)
    warnings: list[str] = []
    with prepared(declared)[0].lock(-1):
        found.autosave(lambda _: None)(GridProgress(list(cells.values()), list(failed.values()), [], []))
        found.write_partial(warnings.append)
    assert not (declared.parent / "out" / "table.json").exists()
    assert ["in use by another process" in warning for warning in warnings] == [True]
    found.write_partial(warnings.append)
    assert len(json.loads((declared.parent / "out" / "errors.json").read_text())) == 4


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("seeds", 'paper = "mian"\nseeds', "paper: unknown table 'mian' (did you mean 'main'?"),
        ("seeds", 'paper = "about"\nseeds', "paper: unknown table 'about'"),
        ("seeds", 'ground_truth = true\nmetrics = ["jsd"]\nseeds', "metric 'jsd' is not a utility"),
        (
            'split = { name = "pls", clients = 3 }',
            'split = { name = "pls", clients = 3 }\nmetrics = ["accuracy"]',
            None,
        ),
        (
            "celm = {}",
            "celm = { rule = { warmup_fraction = 7 } }",
            "row 'digits pls', method 'celm': setting 'rule.",
        ),
    ],
)
def test_mistakes_name_their_place(
    declared: Path, refused: Callable[..., str], before: str, after: str, said: str | None
) -> None:
    declared.write_text(STUDY.replace(before, after))
    if said is None:
        declared.write_text(declared.read_text().replace("seeds", "ground_truth = true\nseeds"))
        said = "row 'digits pls' has metrics"
    assert said in refused("study", declared, "--out", declared.parent / "out")


def test_a_table_says_which_metric_it_shows(declared: Path) -> None:
    study = load_study(str(declared))
    assert study.single_metric == "accuracy"
    assert study.table_label(study.rows[0], "accuracy") == "digits pls"
    mixed = load_study("heterogeneity")
    assert mixed.single_metric is None
    labels = [mixed.table_label(row, metric) for row, metric in mixed.rows_and_metrics]
    assert "fashion_mnist pls accuracy" in labels
    assert "fashion_mnist maverick balanced_accuracy" in labels
