"""Loggers: each dashboard's log, read with its own package, and runs that survive a failing logger."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import Result

import celm
from celm import tracking
from celm.base.errors import CelmError
from celm.runs.run import Run
from celm.runs.run_folder import RunFolder
from celm.tracking import (
    flat_settings,
    metric_name,
    parse_target,
    round_metrics,
    summary_metrics,
    track_finished_run,
)

SMALL = ("--clients=3", "--rounds=3", "--set=probe.steps=2", "--set=rule.warmup=2", "--out=run")


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'celm[{package}]'")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    experiment = celm.Experiment.parse(
        {
            "split": {"name": "pls", "clients": 3},
            "rule": {"warmup": 2},
            "probe": {"steps": 2},
            "run": {"rounds": 3},
        }
    )
    return celm.run(experiment, out=tmp_path_factory.mktemp("runs") / "a run")


def expected(run: Run, number: int) -> dict[str, float]:
    """Return the metrics from the record itself."""
    record = run.rounds[number - 1]
    metrics = {name: record[name] for name in ("accuracy", "balanced_accuracy")}
    for client in ("client-0", "client-1", "client-2"):
        metrics[f"weight/{client}"] = record["client_weights"][client]
        if record["scores"]:
            metrics[f"score/{client}"] = record["scores"][client]
    return metrics


def test_a_round_has_accuracy_and_each_clients_weight_and_score(finished: Run) -> None:
    for number in (1, 2, 3):
        assert round_metrics(finished.rounds[number - 1]) == expected(finished, number)
    assert "score/client-0" in round_metrics(finished.rounds[1])
    assert "score/client-0" not in round_metrics(finished.rounds[2])  # frozen weights: no scores


def test_the_summary_has_final_metrics_and_every_setting(finished: Run) -> None:
    assert summary_metrics(finished)["end/accuracy"] == finished.accuracy
    assert summary_metrics(finished)["end/weight/client-1"] == finished.weights["client-1"]
    assert flat_settings(finished)["run.rounds"] == 3
    assert flat_settings(finished)["rule.name"] == "celm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord:x", "did you mean 'tensorboard'"),
        ("x", "unknown logger"),
        ("wandb", "wandb:logs"),
        ("mlflow:", "no destination"),
    ],
)
def test_an_invalid_target_is_refused(text: str, message: str) -> None:
    with pytest.raises(CelmError, match=message):
        parse_target(text)


def test_a_missing_package_is_named_before_the_run_starts(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tracking.LOGGER_PACKAGES, "wandb", "a_package_that_is_not_there")
    for command in (("run",), ("study", "main"), ("compare", "--methods=celm")):
        assert "pip install 'celm[wandb]'" in refused(*command, "--log=wandb:logs")
    assert not list(tmp_path.iterdir())


def test_client_names_are_valid_in_every_dashboard() -> None:
    assert metric_name("St. Mary's/Köln <b>") == "St. Mary_s_K_ln _b_-debe"
    assert metric_name("ward 1_a.b-c") == "ward 1_a.b-c"


def test_clients_with_similar_names_are_all_logged() -> None:
    weights = {"a/b": 0.5, "a_b": 0.25, "a:b": 0.25}
    logged = round_metrics({"client_weights": weights, "scores": None})
    assert sorted(logged.values()) == [0.25, 0.25, 0.5]
    assert logged["weight/a_b"] == 0.25


@pytest.mark.parametrize("breaks_at", ["open_logger", "log_round", "log_summary", "close"])
def test_a_failing_logger_is_disabled_with_one_warning_and_the_run_continues(
    breaks_at: str, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Broken:
        def __getattr__(self, name: str) -> Callable[..., None]:
            def call(*_: object) -> None:
                calls.append(name)
                if name == breaks_at:
                    raise OSError("disk\nfull")

            return call

    module = ModuleType("broken")
    module.open_logger = (lambda *_: 1 / 0) if breaks_at == "open_logger" else (lambda *_: Broken())  # type: ignore[attr-defined]
    monkeypatch.setitem(tracking.LOGGER_PACKAGES, "broken", "json")
    monkeypatch.setitem(sys.modules, "celm.tracking.broken", module)
    done = invoke("run", *SMALL, "--log=broken:x", "--format=json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rounds"] == 3
    assert "warning: logging to broken failed" in done.stderr
    assert done.stderr.count("\n") == 1
    assert calls.count(breaks_at) == (0 if breaks_at == "open_logger" else 1)


@needs("tensorboard")
def test_tensorboard_has_every_round_of_a_resumed_run(tmp_path: Path, finished: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from celm.tracking import RunTracker

    targets, warnings = [parse_target(f"tensorboard:{tmp_path}")], []
    first = RunTracker(targets, finished.folder, warnings.append)
    for record in finished.rounds[:2]:
        first.log_round(record)
    first.log_round({**finished.rounds[2], "accuracy": 0.0})  # a round that was never checkpointed
    first.close()
    second = RunTracker(targets, finished.folder, warnings.append, last_round=2)
    second.log_round(finished.rounds[2])
    second.log_summary(finished)
    second.close()
    assert not warnings
    (folder,) = tmp_path.glob("a run-*")
    read = EventAccumulator(str(folder)).Reload()
    for number in (1, 2, 3):
        logged = {
            name: next((event.value for event in read.Scalars(name) if event.step == number), None)
            for name in expected(finished, number)
        }
        assert logged == pytest.approx(expected(finished, number))
    assert read.Scalars("end/accuracy")[0].value == pytest.approx(finished.accuracy)
    assert "_hparams_/session_start_info" in read.summary_metadata


@needs("tensorboard")
def test_tensorboard_keeps_runs_of_one_name_apart(tmp_path: Path) -> None:
    from celm.tracking import tensorboard

    for comparison in ("first", "second"):
        tensorboard.open_logger(
            str(tmp_path / "logs"), tmp_path / comparison / "celm-seed42", last_round=0
        ).close()
    names = [folder.name for folder in (tmp_path / "logs").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("celm-seed42-") for name in names)


@needs("mlflow")
def test_mlflow_has_rounds_summary_and_settings_in_one_entry(
    tmp_path: Path, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    warnings: list[str] = []
    for _ in range(2):  # logged twice, it is still one run
        track_finished_run(finished, [parse_target(f"mlflow:{tmp_path / 'ml'}")], warnings.append)
    assert not warnings
    client = MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())
    experiment = client.get_experiment_by_name("celm")
    (entry,) = client.search_runs([experiment.experiment_id])
    assert entry.info.run_name == "a run"
    assert entry.info.status == "FINISHED"
    assert entry.data.params["run.rounds"] == "3"
    assert entry.data.metrics["end/accuracy"] == pytest.approx(finished.accuracy)
    for name, value in expected(finished, 2).items():
        history = client.get_metric_history(entry.info.run_id, name)
        assert {metric.value for metric in history if metric.step == 2} == {value}


@needs("wandb")
def test_wandb_has_rounds_summary_and_settings_offline(tmp_path: Path, finished: Run) -> None:
    # In a separate process, because the package leaves a service behind that ends with it.
    code = (
        "import sys; from celm.runs.run_folder import RunFolder; from celm.runs.run import Run\n"
        "from celm.tracking import parse_target, track_finished_run\n"
        "from pathlib import Path\n"
        "track_finished_run(Run.read(RunFolder(Path(sys.argv[1]))), [parse_target('wandb:' + sys.argv[2])], sys.exit)"
    )
    subprocess.run([sys.executable, "-c", code, finished.folder, tmp_path], check=True, timeout=120)
    (path,) = tmp_path.rglob("run-*.wandb")
    history, config, summaries = read_wandb(path)
    for number in (1, 2, 3):
        logged = {name: value for name, value in history[number - 1].items() if not name.startswith("_")}
        assert logged == pytest.approx(expected(finished, number))
    assert config["run.rounds"] == 3
    assert summaries["end/accuracy"] == pytest.approx(finished.accuracy)


def read_wandb(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    history: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    summaries: dict[str, Any] = {}

    def pairs(items: Any) -> dict[str, Any]:
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

    for data in chunks(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            history.append(pairs(record.history.item))
        elif kind == "config":
            config |= pairs(record.config.update)
        elif kind == "summary":
            summaries |= pairs(record.summary.update)
    return history, config, summaries


def chunks(content: bytes) -> Iterator[bytes]:
    """Yield records of LevelDB's log format: 32 KiB blocks with checksum, length, kind (1 complete, 4 last part)."""
    position, parts = 7, b""  # after the header of the file
    while position + 7 <= len(content):
        if 2**15 - position % 2**15 < 7:
            position += 2**15 - position % 2**15  # the rest of a block is too short for a header
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.slow
@needs("tensorboard")
def test_a_study_logs_each_run_once(tmp_path: Path, celm: Callable[..., Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    only = "--only=dataset=fashion_mnist method=celm"
    for _ in range(2):
        done = celm("study", "iid", "--scale=smoke", only, "--out=out", "--log=tensorboard:logs")
        assert done.returncode == 0
    (folder,) = (tmp_path / "logs").iterdir()
    assert len(EventAccumulator(str(folder)).Reload().Scalars("accuracy")) == 3
    assert RunFolder(tmp_path / "out" / "cells" / folder.name.rpartition("-")[0]).result() is not None
