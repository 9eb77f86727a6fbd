"""The same experiment on Flower's nodes gives the same run, to the byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import Context, Error, Message, RecordDict

import celm
from celm.base.errors import CelmError
from celm.flower import experiment_apps
from celm.flower.simulation import graceful_interrupt
from celm.runs.run_folder import RunFolder
from celm.runs.runner import continue_run
from conftest import Finished, Process
from support.small_grid import SmallGrid

Outcome = Callable[[Path], dict[str, Any]]

SETTINGS = ("--rounds", "3", "--set", "dataset.limit=20", "--set", "probe.steps=10")


class WorkGrid(SmallGrid):
    """Replies can be fetched once, in an order of their own."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = list(super().push_messages(sent))
        names = {number: name for name, number in self.ids.items()}
        self.ready = [
            self.clients[names[message.metadata.dst_node_id]](message) for message in reversed(sent)
        ]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        taken, self.ready = self.ready[:2], self.ready[2:]
        return taken  # type: ignore[return-value]


def node(message: Message) -> Message:
    return experiment_apps.run_client_task(message, Context(0, 0, {}, RecordDict(), {}))


def wanted(objective: str) -> celm.Experiment:
    return celm.Experiment.parse(
        {
            "dataset": {"name": "digits", "limit": 20},
            "objective": objective,
            "probe": {"steps": 5},
            "attack": {"name": "copy_global", "client": "client-1"},
            "observe": ["shapfed"],
            "run": {"rounds": 3, "workers": 0},
        }
    )


@pytest.mark.parametrize("objective", ["plain", "scaffold"])
def test_jobs_on_nodes_give_the_run_of_the_local_engine(
    tmp_path: Path, outcome: Outcome, objective: str
) -> None:
    """With what clients remember (SCAFFOLD), an attack and an observer; fewer nodes than clients."""
    celm.run(wanted(objective), out=tmp_path / "local")
    grid = WorkGrid({"one": node, "two": node, "three": node})
    folder = RunFolder.create(tmp_path / "flower", wanted(objective))
    continue_run(folder, engine_factory=lambda federation, _: experiment_apps.FlowerEngine(grid, federation))
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")


def test_the_ready_server_plays_the_experiment_that_its_configuration_names(
    tmp_path: Path, outcome: Outcome
) -> None:
    celm.run(wanted("plain"), out=tmp_path / "local")
    (tmp_path / "experiment.toml").write_text(wanted("plain").to_toml())
    grid = WorkGrid({"one": node, "two": node})

    def context(**config: str) -> Context:
        return Context(0, 0, {}, RecordDict(), dict(config))

    with pytest.raises(CelmError, match="the run's configuration has no 'out'"):
        experiment_apps.run_server_app(grid, context(experiment="experiment.toml"))
    named = context(experiment=str(tmp_path / "experiment.toml"), out=str(tmp_path / "flower"))
    experiment_apps.run_server_app(grid, named)
    experiment_apps.run_server_app(grid, named)  # a finished one is only read
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")


def test_a_node_that_fails_ends_the_run_with_one_line(tmp_path: Path) -> None:
    def broken(message: Message) -> Message:
        return Message(Error(2, "out of\nmemory" + 1000 * "!"), reply_to=message)

    grid = WorkGrid({"one": broken})
    folder = RunFolder.create(tmp_path / "run", wanted("plain"))
    with pytest.raises(CelmError, match=r"a node failed: 'out of\\nmemory!+\.\.\.'"):
        continue_run(
            folder, engine_factory=lambda federation, _: experiment_apps.FlowerEngine(grid, federation)
        )


def test_without_flower_the_engine_says_what_to_install(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("celm.cli.run.find_spec", lambda name: None)
    assert "pip install 'celm[flower]'" in refused("run", "--engine", "flower")
    assert list(tmp_path.iterdir()) == []


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_celm_does_not_import_flower() -> None:
    assert run_code("import sys, celm, celm.cli.app; sys.exit('flwr' in sys.modules)").returncode == 0


def test_importing_the_strategy_without_flower_says_what_to_install() -> None:
    done = run_code("import sys; sys.modules['flwr'] = None; import celm.flower")
    assert done.stderr.endswith("CelmError: celm.flower needs Flower (pip install 'celm[flower]')\n")


@pytest.mark.slow
def test_the_simulation_of_five_clients_gives_the_run_of_the_local_engine(
    tmp_path: Path, celm: Callable[..., Finished], outcome: Outcome
) -> None:
    local = celm("run", *SETTINGS, "--out", "local", "--format", "json")
    flower = celm("run", *SETTINGS, "--out", "flower", "--format", "json", "--engine", "flower")
    assert flower.returncode == 0, flower.stderr
    assert flower.stdout.startswith("{")
    assert local.returncode == 0
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")


@pytest.fixture
def interrupts_are_heard() -> Iterator[None]:
    """A shell starts jobs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts_are_heard")
def test_an_interrupt_asks_the_server_to_stop_and_a_second_one_ends_the_simulation_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    stopped = threading.Event()
    steps: list[str] = []

    def simulate(interrupts: int, error: Exception | None = None) -> None:
        with graceful_interrupt(stopped):
            for _ in range(interrupts):
                signal.raise_signal(signal.SIGINT)
                steps.append("went on")
            if error:
                raise error

    simulate(0)
    assert not stopped.is_set()
    with pytest.raises(CelmError, match="broken"):
        simulate(0, CelmError("broken"))
    for interrupts, error, went_on in ((1, None, 1), (1, CelmError("ended by that"), 1), (2, None, 1)):
        steps.clear()
        stopped.clear()
        with pytest.raises(KeyboardInterrupt):
            simulate(interrupts, error)
        assert stopped.is_set()
        assert len(steps) == went_on
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_a_run_interrupted_in_the_simulation_can_be_resumed_on_the_local_engine(
    tmp_path: Path, start_celm: Callable[..., Process], celm: Callable[..., Finished], outcome: Outcome
) -> None:
    settings = ("--rounds", "12", *SETTINGS[2:])
    process = start_celm("run", *settings, "--out", "flower", "--engine", "flower")
    record = tmp_path / "flower" / "rounds.jsonl"
    end = time.monotonic() + 240
    while not (record.exists() and record.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert celm("run", "--resume", "flower").returncode == 0
    assert celm("run", *settings, "--out", "local").returncode == 0
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "local")
