"""`celm run`: one JSON document for machines, one line for mistakes, 130 for Ctrl-C."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import celm as package

Invoke = Callable[..., Result]
Refused = Callable[..., str]

SMALL = ("--clients=3", "--rounds=2", "--set=probe.steps=3", "--set=model.widths=[8]")


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from numbers_in(inner)
    elif isinstance(value, int | float):
        yield value


def test_json_is_one_document_with_all_that_was_promised(tmp_path: Path, celm: Callable[..., Any]) -> None:
    done = celm("run", *SMALL, "--out", "run", "--format=json", "--split=maverick", "--seed=43")
    assert done.returncode == 0
    assert done.stderr == ""
    document = json.loads(done.stdout, parse_constant=lambda text: pytest.fail(f"{text} in the JSON"))
    assert document["run"] == str(tmp_path / "run")
    assert (document["dataset"], document["split"], document["rule"]) == ("digits", "maverick", "celm")
    assert (document["objective"], document["seed"], document["rounds"]) == ("plain", 43, 2)
    fractions = ("accuracy", "balanced_accuracy", "rare_class_accuracy", "per_class", "weights")
    for key in fractions:
        assert all(0 <= number <= 1 for number in numbers_in(document[key])), key
    assert all(math.isfinite(number) for number in numbers_in(document))
    assert len(document["per_class"]) == 10
    assert list(document["weights"]) == list(document["evidence"]) == ["client-0", "client-1", "client-2"]
    assert sum(document["weights"].values()) == pytest.approx(1)
    assert all(len(row) == 10 for row in document["evidence"].values())
    assert document["seconds"] > 0
    last = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    assert {key: last[key] for key in fractions[:4]} == {key: document[key] for key in fractions[:4]}


def test_what_a_split_or_rule_does_not_have_is_null(invoke: Invoke) -> None:
    document = json.loads(invoke("run", *SMALL, "--rule=fedavg", "--split=iid", "--format=json").stdout)
    assert document["rare_class_accuracy"] is None
    assert document["evidence"] is None


def test_text_is_one_screen_with_the_folder(invoke: Invoke) -> None:
    result = invoke("run", *SMALL, "--out", "my run")
    assert result.exit_code == 0
    assert result.stderr == ""
    for text in (
        "digits, frm, 3 clients, steps 3, celm, seed 42",
        "client-2",
        "accuracy",
        "after 2 rounds",
        "run folder: my run",
    ):
        assert text in result.stdout
    assert len(result.stdout.splitlines()) < 25


def test_a_file_of_settings_is_run(tmp_path: Path, invoke: Invoke) -> None:
    assert invoke("init", "my.toml").exit_code == 0
    result = invoke("run", "my.toml", *SMALL, "--rule=fedavg", "--out=run", "--format=json")
    assert json.loads(result.stdout)["rule"] == "fedavg"
    again = invoke("run", "run/settings.toml", "--out=again", "--format=json")
    one, other = json.loads(result.stdout), json.loads(again.stdout)
    different = ("run", "seconds")
    assert {k: v for k, v in one.items() if k not in different} == {
        k: v for k, v in other.items() if k not in different
    }


def test_results_depend_on_the_seed_and_on_nothing_else(invoke: Invoke) -> None:
    def accuracies(seed: int, out: str) -> Any:
        return json.loads(invoke("run", *SMALL, f"--seed={seed}", f"--out={out}", "--format=json").stdout)[
            "evidence"
        ]

    assert accuracies(1, "a") == accuracies(1, "b") != accuracies(2, "c")


MISTAKES: dict[str, tuple[list[str], str]] = {
    "unknown table": (["--set=trian.lr=1"], "did you mean 'train'?"),
    "unknown setting": (["--set=train.rate=1"], "unknown setting 'train.rate'"),
    "unknown setting of the rule": (["--set=rule.warmpu=1"], "did you mean 'warmup'?"),
    "no assignment": (["--set=rounds"], "write TABLE.KEY=VALUE"),
    "ill-typed": (["--set=train.lr=fast"], "setting 'train.lr'"),
    "out of range": (["--participation=2"], "setting 'run.participation'"),
    "negative workers": (["--workers=-1"], "setting 'run.workers'"),
    "unknown rule": (["--rule=fedagv"], "did you mean 'fedavg'?"),
    "unknown dataset": (["--dataset=digit"], "did you mean 'digits'?"),
    "dataset folder that is not there": (["--dataset=./nowhere"], "there is no folder ./nowhere"),
    "no such file": (["nowhere.toml"], "cannot read nowhere.toml"),
    "impossible split": (["--set=split.min_labels=50"], "split.min_labels"),
    "too many clients": (["--split=iid", "--clients=99999"], "split.clients"),
    "unknown layer": (["--set=model.head=haed"], "did you mean 'head'?"),
    "model of no module": (["--model=nowhere.at.all:make"], "cannot import 'nowhere.at.all'"),
    "model of no function": (["--model=math:nothing"], "'math' has no 'nothing'"),
    "model that is no model": (["--model=math:floor"], "model 'math:floor'"),
    "unknown device": (["--device=abacus"], "run.device: 'abacus' cannot be used"),
    "device without tensors": (["--device=meta"], "run.device: 'meta' cannot be used"),
    "attacker that is not there": (
        ["--set=attack.name=copy_global", "--set=attack.client=client-9"],
        "unknown client 'client-9'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_folder(tmp_path: Path, refused: Refused, name: str) -> None:
    arguments, message = MISTAKES[name]
    assert message in refused("run", *arguments, "--out=run", "--format=json")
    assert not (tmp_path / "run").exists()


def test_a_dataset_that_cannot_be_had_is_one_line(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("CELM_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("CELM_MIRROR", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("celm.data.files.locate.SYSTEM_DATASETS", tmp_path / "system")
    message = refused("run", "--dataset=fashion_mnist", "--out=run")
    assert "127.0.0.1:9" in message
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_a_process_of_its_own_has_no_traceback(tmp_path: Path, celm: Callable[..., Any]) -> None:
    done = celm("run", "--split=pls", "--set=split.min_labels=50")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: setting 'split.min_labels'")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


def test_control_characters_in_a_mistake_are_not_printed(refused: Refused) -> None:
    assert "\x1b" not in refused("run", "--rule=\x1b[31mred")


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["--rounds=many"], ["--format=xml"]])
def test_what_the_command_does_not_know_ends_with_2(invoke: Invoke, arguments: list[str]) -> None:
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    "workers",
    [pytest.param(0, id="in this process"), pytest.param(2, id="with workers", marks=pytest.mark.slow)],
)
def test_ctrl_c_ends_with_130_says_how_to_go_on_and_the_run_can_be_resumed(
    tmp_path: Path,
    start_celm: Callable[..., Any],
    outcome: Callable[[Path], dict[str, Any]],
    workers: int,
) -> None:
    small = ("--rule=fedavg", "--clients=3", "--rounds=150", "--set=model.widths=[8]")
    process = start_celm("run", *small, "--out=run", f"--workers={workers}")
    records = tmp_path / "run" / "rounds.jsonl"
    while not (records.exists() and records.stat().st_size):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "celm run --resume run" in stderr
    assert "Traceback" not in stderr
    package.resume(tmp_path / "run")
    settings = package.Experiment.read(tmp_path / "run" / "settings.toml")
    package.run(settings.model_copy(update={"run": settings.run.model_copy(update={"workers": 0})}), "whole")
    assert outcome(tmp_path / "run") == outcome(Path("whole"))


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_ctrl_c_while_everything_is_still_being_loaded_leaves_nothing_behind(
    tmp_path: Path, start_celm: Callable[..., Any]
) -> None:
    """A slow `torch` stands in for the few seconds that loading takes, so that the moment is certain."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "torch.py").write_text(
        "import pathlib, time\npathlib.Path('loading').touch()\ntime.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path / "slow"), os.environ.get("PYTHONPATH", "")])
    process = start_celm("run", "--out=run", PYTHONPATH=path)
    while not (tmp_path / "loading").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert not (tmp_path / "run").exists()
