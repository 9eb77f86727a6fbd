"""Whole jobs in NVFlare's simulator, with one process for each site."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'celm[nvflare]'")

import torch

import celm
from celm.records.hash_chain import verify_chain
from celm.results.load import load
from support.nvflare_job.experiment import PROBE, RULE, experiment

pytestmark = pytest.mark.slow

JOB = Path(__file__).parents[1] / "support" / "nvflare_job"
ROUNDS = 3


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def start_job(folder: Path, workspace: Path, rounds: int, *options: str) -> subprocess.Popen[str]:
    """Start the job in a process group of its own; its log is the file `log` of its NVFlare workspace."""
    workspace.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, "job.py", str(folder), str(workspace), str(rounds), *options]
    with (workspace / "log").open("a") as log:
        return subprocess.Popen(
            arguments, cwd=JOB, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )


def finish(job: subprocess.Popen[str], workspace: Path) -> tuple[int, str]:
    """Return exit code and log of a job."""
    try:
        code = job.wait(timeout=500)
    finally:
        kill_job(job, workspace)
    return code, (workspace / "log").read_text()


def processes_of(workspace: Path) -> list[int]:
    """Return the processes whose command line names the NVFlare workspace. Each site has a process group of its own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(workspace).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:  # it ended meanwhile
            continue
    return [process for process in found if process != os.getpid()]


def kill_job(job: subprocess.Popen[str], workspace: Path) -> None:
    """Kill the server and all sites, as a power cut would."""
    for process in [job.pid, *processes_of(workspace)]:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.wait()


def wait_for_first_round(folder: Path, job: subprocess.Popen[str]) -> None:
    """Wait until a round is saved: its metrics are written after its checkpoint."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and job.poll() is None:
        if (folder / "metrics.prom").exists():
            return
        time.sleep(0.02)
    raise AssertionError("the job did not save its first round")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> celm.Run:
    """The same experiment in the local engine."""
    return celm.run(experiment(), out=tmp_path_factory.mktemp("local") / "run")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A job whose server and sites are killed after round 1, and that is then run again with the same folder."""
    root = tmp_path_factory.mktemp("resumed")
    folder, workspace = root / "state", root / "work"
    job = start_job(folder, workspace, ROUNDS)
    try:
        wait_for_first_round(folder, job)
    finally:
        kill_job(job, workspace)
    assert job.returncode == -signal.SIGKILL
    code, log = finish(start_job(folder, workspace, ROUNDS), workspace)
    assert code == 0, log[-3000:]
    return folder, workspace, log


def test_a_killed_and_resumed_job_has_the_weights_and_the_model_of_the_local_engine(
    local: celm.Run, resumed: tuple[Path, Path, str]
) -> None:
    """In the warm-up, in which clients keep their own heads, and after it."""
    folder, workspace, log = resumed
    assert "Resuming after round" in log
    lines = lines_of(folder / "rounds.jsonl")
    assert [line["round"] for line in lines] == [1, 2, 3]
    for ours, record in zip(lines, local.rounds, strict=True):
        assert ours["client_weights"] == pytest.approx(record["client_weights"], abs=1e-5)
    saved = workspace / "contributions/server/simulate_job/app_server/FL_global_model.pt"
    model = torch.load(saved, weights_only=True)["model"]
    for name, tensor in local.model().state_dict().items():
        torch.testing.assert_close(model[name], tensor, rtol=0, atol=1e-5)


def test_it_has_the_weights_of_the_flower_strategy(resumed: tuple[Path, Path, str]) -> None:
    """Flower's messages and arrays as bytes; its clients train as the job's sites do."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")
    from flwr.app import ArrayRecord, Message

    from celm.federation.build import build_federation, resolve_defaults
    from celm.federation.client_trainer import ClientTask
    from celm.flower import CelmStrategy
    from celm.rules.messages import ServerMessage
    from support.small_grid import SmallGrid, reply

    federation = build_federation(resolve_defaults(experiment()))

    def site(name: str) -> Any:
        def train(message: Message) -> Message:
            number = message.content["config"]["server-round"]
            sent = message.content["arrays"].to_torch_state_dict()
            task = ClientTask(
                name, number, federation.experiment.train.lr_at(number), ServerMessage(dict(sent))
            )
            update = federation.trainer.train(task).update
            return reply(message, ArrayRecord(update.model), num_examples=update.num_examples)

        return train

    facts = federation.context
    strategy = CelmStrategy(
        facts.module,
        facts.input_shape,
        facts.classes,
        rule_options=RULE,
        probe=PROBE,
        preset=None,
        fraction_evaluate=0.0,
    )
    grid = SmallGrid({name: site(name) for name in facts.clients})
    result = strategy.start(grid, ArrayRecord(federation.initial_model), num_rounds=ROUNDS)
    for line in lines_of(resumed[0] / "rounds.jsonl"):
        assert line["client_weights"] == pytest.approx(result.contributions[line["round"]], abs=1e-5)


def test_the_record_names_the_framework_and_can_be_read(resumed: tuple[Path, Path, str]) -> None:
    folder, _, _ = resumed
    lines = lines_of(folder / "rounds.jsonl")
    assert verify_chain(folder / "rounds.jsonl") == lines
    assert lines[-1]["versions"]["nvflare"]
    assert lines[-1]["keys"] == {f"client-{i}": f"node-client-{i}" for i in range(5)}
    # Sites report a metric of the model that they were sent: that of the round before.
    evaluations = lines_of(folder / "evaluations.jsonl")
    assert [(line["round"], line["clients"]) for line in evaluations] == [
        (number, {"accuracy": 0.5}) for number in range(ROUNDS)
    ]
    assert load(folder).weights == pytest.approx(lines[-1]["client_weights"])


def test_bad_sites_are_named_and_the_job_ends_with_its_state_saved(tmp_path: Path) -> None:
    """One site sends NaN, one leaves an array out, one is killed in round 3. In round 4, one site of five is left."""
    folder, workspace = tmp_path / "state", tmp_path / "work"
    code, log = finish(start_job(folder, workspace, 4, "--bad"), workspace)
    lines = lines_of(folder / "rounds.jsonl")
    assert [line["round"] for line in lines] == [1, 2, 3], log[-3000:]
    for line in lines:
        assert "head.bias" in line["excluded"]["client-0"]
        assert "not finite" in line["excluded"]["client-0"]
        assert line["excluded"]["client-1"] == "array 'head.bias' is missing"
        assert line["client_weights"]["client-0"] == line["client_weights"]["client-1"] == 0
    assert set(lines[1]["excluded"]) == {"client-0", "client-1"}
    assert lines[2]["excluded"]["client-3"] == "no reply in time"
    assert set(lines[2]["received"]) == {"client-2", "client-4"}
    (failure,) = lines_of(folder / "failures.jsonl")
    assert set(failure["excluded"]) == {f"client-{i}" for i in range(4)}
    assert code != 0
    assert f"fewer than 2 usable replies in 1 attempts; the state is saved in {folder}" in log
