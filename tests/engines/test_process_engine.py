"""Workers change no result, end with their parent, and report their errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import celm
from celm.engines.in_process import InProcessEngine
from celm.engines.process_engine import ProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.client_trainer import ClientTask, EvalSet
from celm.rules.messages import ServerMessage

Outcome = Callable[[Path], dict[str, Any]]


def experiment(**run: Any) -> Experiment:
    return Experiment(
        split={"clients": 4},
        model={"name": "mlp", "widths": [16]},
        probe={"steps": 5},
        run={"rounds": 3, **run},
    )


def make_tasks(federation: Federation) -> list[ClientTask]:
    message = ServerMessage(federation.initial_model)
    return [ClientTask(name, 1, 0.1, message) for name in federation.context.clients]


def children(parent: int) -> set[int]:
    """Return the descendants of a process, from /proc."""
    pids: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            child = int(stat.parent.name)
            pids |= {child, *children(child)}
    return pids


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true: Callable[[], bool], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def federation() -> Federation:
    torch.set_num_threads(1)
    return build_federation(resolve_defaults(experiment(validation=0.2)))


@pytest.fixture(scope="module")
def workers(federation: Federation) -> Iterator[ProcessEngine]:
    with closing(ProcessEngine(federation.trainer, 2, threads=1)) as engine:
        yield engine


def test_workers_return_what_this_process_would_in_the_order_asked(
    federation: Federation, workers: ProcessEngine
) -> None:
    local_engine = InProcessEngine(federation.trainer)
    for _ in range(5):
        tasks = make_tasks(federation) * 3
        for local_result, worker_result in zip(local_engine.train(tasks), workers.train(tasks), strict=True):
            assert local_result.update.num_steps == worker_result.update.num_steps
            assert local_result.update.num_examples == worker_result.update.num_examples
            for name, tensor in local_result.update.model.items():
                assert torch.equal(tensor, worker_result.update.model[name])
    models = [federation.initial_model, local_engine.train(make_tasks(federation)[:1])[0].update.model]
    sets: tuple[EvalSet, ...] = ("test", "validation")
    for on in sets:
        for local_result, worker_result in zip(
            local_engine.evaluate(models, on), workers.evaluate(models, on), strict=True
        ):
            assert local_result.sum() > 0
            assert torch.equal(local_result, worker_result)


def test_what_a_worker_trains_is_its_own_and_not_in_memory_that_others_write_to(
    federation: Federation, workers: ProcessEngine
) -> None:
    before = [parameter.detach().clone() for parameter in federation.trainer.parameters]
    workers.train(make_tasks(federation))
    for old, new in zip(before, federation.trainer.parameters, strict=True):
        assert torch.equal(old, new)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["celm", "standalone"])
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, outcome: Outcome, rule: str) -> None:
    results = []
    for workers in (0, 1, 2, 3):
        settings = experiment(rounds=8, workers=workers).model_copy(update={"rule": rule_named(rule)})
        celm.run(settings, tmp_path / str(workers))
        results.append(outcome(tmp_path / str(workers)))
    assert results[0] == results[1] == results[2] == results[3]


def rule_named(name: str) -> Any:
    return Experiment(rule=name).rule


FAULTY_MODEL = """
from torch import nn
from celm import CelmError

class Faulty(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.error = error
    def forward(self, x):
        if self.training:
            raise self.error
        return self.head(x.flatten(1))

def failing():
    return Faulty(ZeroDivisionError("a bug in the model"))

def refusing():
    return Faulty(CelmError("the data do not suit"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "code", "expected"),
    [("failing", 1, "ZeroDivisionError: a bug in the model"), ("refusing", 2, "error: the data do not suit")],
)
def test_an_error_in_a_worker_is_raised_in_the_parent(
    tmp_path: Path, celm: Callable[..., Any], factory: str, code: int, expected: str
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY_MODEL)
    done = celm("run", f"--model=faulty:{factory}", "--workers=2", "--rounds=2", "--out=run")
    assert done.returncode == code, done.stderr
    assert expected in done.stderr
    assert ("a worker failed" in done.stderr) == (factory == "failing")
    assert ("Traceback" in done.stderr) == (factory == "failing")


@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_line_and_the_run_can_be_resumed(
    tmp_path: Path, outcome: Outcome, start_celm: Callable[..., Any]
) -> None:
    out, settings = tmp_path / "run", tmp_path / "settings.toml"
    settings.write_text(experiment(rounds=300, workers=2).to_toml())
    process = start_celm("run", settings, "--out", out, "--format=json")
    wait_until(lambda: len(list(out.glob("checkpoints/round-*"))) == 2)
    victim = max(children(process.pid))
    os.kill(victim, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert stdout == ""
    assert stderr.count("\n") == 1
    assert "a worker process ended unexpectedly (exit codes [-9])" in stderr
    assert f"celm run --resume {out}" in stderr.replace("\n", "")
    assert celm.resume(out).metrics["rounds"] == 300
    celm.run(experiment(rounds=300, workers=0), tmp_path / "whole")
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path, start_celm: Callable[..., Any]) -> None:
    out, settings = tmp_path / "run", tmp_path / "settings.toml"
    settings.write_text(experiment(rounds=5000, workers=2).to_toml())
    process = start_celm("run", settings, "--out", out)
    wait_until(lambda: (out / "rounds.jsonl").exists() and (out / "rounds.jsonl").stat().st_size > 0)
    family = children(process.pid)
    assert len(family) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(alive(pid) for pid in family), seconds=20)


OWN_MODEL = """
from torch import nn

def make(input_shape, classes):
    class Local(nn.Module):  # of a class that only exists in here, so the model itself cannot travel
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, classes)
            self.mend = lambda x: x.flatten(1) / 2
        def forward(self, x):
            return self.head(self.mend(x))
    return Local()
"""


@pytest.mark.slow
def test_workers_build_models_that_cannot_travel(tmp_path: Path, celm: Callable[..., Any]) -> None:
    (tmp_path / "untravelled.py").write_text(OWN_MODEL)
    for workers in (0, 2):
        more = (
            "--rounds=2",
            "--clients=3",
            "--set=probe.steps=3",
            f"--workers={workers}",
            f"--out=run{workers}",
        )
        done = celm("run", "--model=untravelled:make", *more)
        assert done.returncode == 0, done.stderr
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "run0" / name).read_bytes() == (tmp_path / "run2" / name).read_bytes()


@pytest.mark.slow
def test_many_clients_need_no_more_file_descriptors(tmp_path: Path) -> None:
    script = (
        "import resource, sys; from celm.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "if __name__ == '__main__': main()\n"
    )
    (tmp_path / "few.py").write_text(script)
    arguments = [
        "--split=iid",
        "--clients=300",
        "--rounds=1",
        "--rule=fedavg",
        "--workers=2",
        "--format=json",
    ]
    done = subprocess.run(
        [sys.executable, "few.py", "run", "--out", "out", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


def test_a_negative_number_of_workers_is_refused_on_resume_too(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "settings.toml").write_text(experiment(rounds=1).to_toml())
    assert "run.workers" in refused("run", "--resume", tmp_path, "--workers=-1")
    assert (tmp_path / "settings.toml").exists()
