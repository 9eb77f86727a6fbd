"""Dashboards: what a run says to each, read back with its own package, and that none can lose a run."""

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
from celm.base.errors import CelmError
from celm.federation.folder import Folder
from celm.federation.run import Run
from celm.report import loggers
from celm.report.loggers import parse, safe, settings, summary, tell, values

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
    """From the record itself."""
    record = run.rounds[number - 1]
    found = {name: record[name] for name in ("accuracy", "balanced_accuracy")}
    for client in ("client-0", "client-1", "client-2"):
        found[f"weight/{client}"] = record["standing"][client]
        if record["scores"]:
            found[f"score/{client}"] = record["scores"][client]
    return found


def test_a_round_is_its_accuracy_and_each_clients_weight_and_score(finished: Run) -> None:
    for number in (1, 2, 3):
        assert values(finished.rounds[number - 1]) == expected(finished, number)
    assert "score/client-0" in values(finished.rounds[1])
    assert "score/client-0" not in values(finished.rounds[2])  # frozen: nothing is scored


def test_the_end_is_the_summary_and_every_setting(finished: Run) -> None:
    assert summary(finished)["end/accuracy"] == finished.accuracy
    assert summary(finished)["end/weight/client-1"] == finished.weights["client-1"]
    assert settings(finished)["run.rounds"] == 3
    assert settings(finished)["rule.name"] == "celm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord:x", "did you mean 'tensorboard'"),
        ("x", "unknown logger"),
        ("wandb", "as in wandb:logs"),
        ("mlflow:", "does not say where"),
    ],
)
def test_what_names_no_logger_or_place_is_refused(text: str, message: str) -> None:
    with pytest.raises(CelmError, match=message):
        parse(text)


def test_a_missing_package_is_named_before_anything_is_run(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loggers.PACKAGES, "wandb", "a_package_that_is_not_there")
    for command in (("run",), ("study", "main"), ("compare", "--methods=celm")):
        assert "pip install 'celm[wandb]'" in refused(*command, "--log=wandb:logs")
    assert not list(tmp_path.iterdir())


def test_names_of_clients_are_made_fit_for_every_dashboard() -> None:
    assert safe("St. Mary's/Köln <b>") == "St. Mary_s_K_ln _b_-debe"
    assert safe("ward 1_a.b-c") == "ward 1_a.b-c"


def test_clients_with_names_alike_are_all_told_of() -> None:
    weights = {"a/b": 0.5, "a_b": 0.25, "a:b": 0.25}
    told = values({"standing": weights, "scores": None})
    assert sorted(told.values()) == [0.25, 0.25, 0.5]
    assert told["weight/a_b"] == 0.25


@pytest.mark.parametrize("breaks_at", ["open", "round", "end", "close"])
def test_a_logger_that_fails_is_given_up_with_a_warning_and_the_run_is_kept(
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
    module.open = (lambda *_: 1 / 0) if breaks_at == "open" else (lambda *_: Broken())  # type: ignore[attr-defined]
    monkeypatch.setitem(loggers.PACKAGES, "broken", "json")
    monkeypatch.setitem(sys.modules, "celm.report.loggers.broken", module)
    done = invoke("run", *SMALL, "--log=broken:x", "--format=json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rounds"] == 3
    assert "warning: logging to broken failed and is given up" in done.stderr
    assert done.stderr.count("\n") == 1
    assert calls.count(breaks_at) == (0 if breaks_at == "open" else 1)


@needs("tensorboard")
def test_tensorboard_has_every_round_also_of_a_run_that_was_resumed(tmp_path: Path, finished: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from celm.report.loggers import Log

    targets, warnings = [parse(f"tensorboard:{tmp_path}")], []
    first = Log(targets, finished.folder, warnings.append)
    for record in finished.rounds[:2]:
        first.round(record)
    first.round({**finished.rounds[2], "accuracy": 0.0})  # of a round that was never checkpointed
    first.close()
    second = Log(targets, finished.folder, warnings.append, after=2)
    second.round(finished.rounds[2])
    second.end(finished)
    second.close()
    assert not warnings
    (place,) = tmp_path.glob("a run-*")
    read = EventAccumulator(str(place)).Reload()
    for number in (1, 2, 3):
        told = {
            name: next((event.value for event in read.Scalars(name) if event.step == number), None)
            for name in expected(finished, number)
        }
        assert told == pytest.approx(expected(finished, number))
    assert read.Scalars("end/accuracy")[0].value == pytest.approx(finished.accuracy)
    assert "_hparams_/session_start_info" in read.summary_metadata


@needs("tensorboard")
def test_tensorboard_keeps_runs_of_one_name_apart(tmp_path: Path) -> None:
    from celm.report.loggers import tensorboard

    for comparison in ("first", "second"):
        tensorboard.open(str(tmp_path / "logs"), tmp_path / comparison / "celm-seed42", after=0).close()
    names = [place.name for place in (tmp_path / "logs").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("celm-seed42-") for name in names)


@needs("mlflow")
def test_mlflow_has_rounds_summary_and_settings_in_one_entry(
    tmp_path: Path, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    warnings: list[str] = []
    for _ in range(2):  # told twice, it is still one run
        tell(finished, [parse(f"mlflow:{tmp_path / 'ml'}")], warnings.append)
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
    # In a process of its own: the package leaves a service behind that ends with it.
    code = (
        "import sys; from celm.federation.folder import Folder; from celm.federation.run import Run\n"
        "from celm.report.loggers import parse, tell\n"
        "from pathlib import Path\n"
        "tell(Run.read(Folder(Path(sys.argv[1]))), [parse('wandb:' + sys.argv[2])], sys.exit)"
    )
    subprocess.run([sys.executable, "-c", code, finished.folder, tmp_path], check=True, timeout=120)
    (path,) = tmp_path.rglob("run-*.wandb")
    history, config, summaries = read_wandb(path)
    for number in (1, 2, 3):
        told = {name: value for name, value in history[number - 1].items() if not name.startswith("_")}
        assert told == pytest.approx(expected(finished, number))
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
    """The records of LevelDB's log format: blocks of 32 KiB, in them checksum, length, kind (1 whole, 4 last part)."""
    at, parts = 7, b""  # after the file's own mark
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15  # the rest of a block that holds no header
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.slow
@needs("tensorboard")
def test_a_study_logs_each_run_it_brings_to_its_end_once(tmp_path: Path, celm: Callable[..., Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    only = "--only=dataset=fashion_mnist method=celm"
    for _ in range(2):
        done = celm("study", "iid", "--scale=smoke", only, "--out=out", "--log=tensorboard:logs")
        assert done.returncode == 0
    (place,) = (tmp_path / "logs").iterdir()
    assert len(EventAccumulator(str(place)).Reload().Scalars("accuracy")) == 3
    assert Folder(tmp_path / "out" / "cells" / place.name.rpartition("-")[0]).result() is not None
