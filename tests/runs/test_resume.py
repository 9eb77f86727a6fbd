"""A run that is killed at any moment and resumed ends with the same bytes as one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import celm

Outcome = Callable[[Path], dict[str, Any]]
SMALL = ("--clients=4", "--rounds=4", "--set=probe.steps=5", "--set=model.widths=[16]")
SETUPS = {
    "celm": ("--set=rule.warmup=2",),
    "fedavg": ("--rule=fedavg",),
    "standalone": ("--rule=standalone",),
    "participation": ("--participation=0.5", "--set=rule.warmup=3"),
    "attack": (
        "--set=attack.name=replay_delta",
        "--set=attack.client=client-1",
        "--set=rule.warmup=3",
        "--set=train.momentum=0.5",
    ),
}

DRIVER = '''
"""Run `celm run ARGUMENTS` in children that kill themselves at their n-th file operation, and resume."""
import json, os, signal, sys
from pathlib import Path

import celm
from celm.cli import main

OPERATIONS = ("open", "fsync", "replace", "unlink", "mkdir", "truncate")

def child(work):
    """Fork, work, and say how it ended; with one thread and no GPU there is nothing a fork could break."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def deadly(number, log):
    """Count the operations on files; end by SIGKILL right before the n-th."""
    count = 0
    def wrapped(name, original):
        def call(*arguments, **keywords):
            nonlocal count
            count += 1
            if count == number:
                Path(log).write_text(f"{name} {arguments[:1]}")
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **keywords)
        return call
    for name in OPERATIONS:
        setattr(os, name, wrapped(name, getattr(os, name)))

def work(out, arguments):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["celm", "run", "--out", out, "--format=json", *arguments]
    main()

def run(root, first, stride, arguments):
    number, moments = first, []
    celm.run(celm.Experiment(split="iid", run={"rounds": 2}, probe={"steps": 1}), f"{root}/warm")  # imports
    while True:
        out, log = f"{root}/killed-{number}", f"{root}/log-{number}"
        def doomed():
            deadly(number, log)
            work(out, arguments)
        code = child(doomed)
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        if Path(out, "settings.toml").exists():
            again = child(lambda: celm.resume(out))
            moments.append([Path(log).read_text(), out, again])
        number += stride
    print(json.dumps(moments))

if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
'''


def killed_at_file_operations(
    root: Path, first: int, stride: int, arguments: Sequence[str]
) -> list[tuple[str, Path, int]]:
    driver = root / "driver.py"
    driver.write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, driver, root, str(first), str(stride), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
        check=True,
    )
    return [(moment, Path(out), code) for moment, out, code in json.loads(done.stdout)]


def check_all_moments(root: Path, first: int, stride: int, setup: str, outcome: Outcome, run: Any) -> None:
    arguments = (*SMALL, *SETUPS[setup])
    assert run("run", "--out", root / "whole", *arguments).exit_code == 0
    whole = outcome(root / "whole")
    moments = killed_at_file_operations(root, first, stride, arguments)
    assert len(moments) >= 40 // stride
    for moment, out, code in moments:
        assert code == 0, moment
        assert outcome(out) == whole, moment
        assert not list(out.rglob("*.part")), moment


def test_killed_before_any_seventh_file_operation_and_resumed_gives_the_same_bytes(
    tmp_path: Path, outcome: Outcome, invoke: Callable[..., Result]
) -> None:
    check_all_moments(tmp_path, 5, 7, "celm", outcome, invoke)


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS)
def test_killed_before_any_file_operation_and_resumed_gives_the_same_bytes(
    tmp_path: Path, outcome: Outcome, invoke: Callable[..., Result], setup: str
) -> None:
    check_all_moments(tmp_path, 1, 1 if setup == "celm" else 3, setup, outcome, invoke)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_again_and_again_at_random_moments_and_resumed_gives_the_same_bytes(
    tmp_path: Path,
    outcome: Outcome,
    invoke: Callable[..., Result],
    start_celm: Callable[..., Any],
    workers: int,
) -> None:
    arguments = ("--clients=4", "--rounds=40", "--set=probe.steps=40", "--set=rule.warmup=20")
    assert invoke("run", "--out", "whole", *arguments, "--workers=0").exit_code == 0
    out, draw = tmp_path / "killed", random.Random(7 + workers)
    reached = []
    for attempt in range(5):
        resume = ("--resume", out, "--workers", workers)
        process = start_celm(
            "run", *(resume if attempt else ("--out", out, *arguments, "--workers", workers))
        )
        records = out / "rounds.jsonl"
        before = len(records.read_bytes().splitlines()) if records.exists() else 0
        target = before + draw.randint(1, 6)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if records.exists() and len(records.read_bytes().splitlines()) >= target:
                time.sleep(draw.random() * 0.05)
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        process.wait(timeout=120)
        reached.append(len(records.read_bytes().splitlines()))
    assert reached[0] < 40
    celm.resume(out)
    assert outcome(out) == outcome(tmp_path / "whole")


def test_killed_in_its_first_second_the_folder_is_there_and_can_be_resumed(
    tmp_path: Path, outcome: Outcome, invoke: Callable[..., Result], start_celm: Callable[..., Any]
) -> None:
    out = tmp_path / "killed"
    process = start_celm("run", "--out", out, *SMALL)
    while not (out / "settings.toml").exists():
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    resumed = invoke("run", "--resume", out, "--format=json")
    assert resumed.exit_code == 0
    assert invoke("run", "--out", "whole", *SMALL).exit_code == 0
    assert outcome(out) == outcome(tmp_path / "whole")


def test_a_folder_with_nothing_but_settings_is_started_by_resume(
    tmp_path: Path, invoke: Callable[..., Result]
) -> None:
    (tmp_path / "settings.toml").write_text(
        'rule = "fedavg"\n[run]\nrounds = 1\n[split]\nname = "iid"\nclients = 2\n'
    )
    resumed = invoke("run", "--resume", tmp_path, "--format=json")
    assert resumed.exit_code == 0
    assert json.loads(resumed.stdout)["rounds"] == 1


def test_resume_of_a_finished_run_prints_the_same_again_and_changes_nothing(
    tmp_path: Path, invoke: Callable[..., Result], kept_files: Callable[[Path], dict[str, bytes]]
) -> None:
    first = invoke("run", "--out", "done", *SMALL, "--format=json")
    before = kept_files(tmp_path / "done")
    again = invoke("run", "--resume", "done", "--format=json")
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert kept_files(tmp_path / "done") == before


def test_resume_may_change_the_number_of_workers_but_takes_no_settings(
    invoke: Callable[..., Result], refused: Callable[..., str]
) -> None:
    assert invoke("run", "--out", "done", *SMALL).exit_code == 0
    assert "--resume" in refused("run", "--resume", "done", "--rounds=3")
    assert invoke("run", "--resume", "done", "--workers=1").exit_code == 0
