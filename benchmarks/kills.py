"""Kill `celm audit` and `celm study` at random moments, repeat the command, and compare the bytes with an unkilled run.

    python benchmarks/kills.py [--kills 200] [--seed 0]

One trial has a folder of its own. A process starts the command there, and SIGKILL ends it after a random part of the
time that the command needs. The same command follows, and may be killed again, until one ends by itself. Then all files
of the folder must be those of a command that nobody killed, except locks and measured seconds.

Processes are forked from one that has imported celm already, so that kills meet the work and not the imports. The runs
of the study are in the process of the command; tests/study/test_scheduler.py kills a study with worker processes.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from celm.base.files import dump_json, write_text
from celm.cli import main as run_cli
from celm.models import build_model
from celm.models.state_dict import get_state

MEASURED_FILES = ("environment.json", "times.jsonl")
"""Names of files with times of day and durations."""
SHAPE, CLASSES, WIDTHS, CLIENTS = (1, 8, 8), 10, [16], 4
STUDY = """
title = "Kills"
seeds = [1]
[methods]
fedavg = {}
celm = {}
[[rows]]
dataset = { name = "digits", limit = 20 }
split = { name = "iid", clients = 3 }
run = { rounds = 3 }
probe = { steps = 2 }
"""
MAX_KILLS = 4
"""Largest number of kills in one trial; the next repetition of the command ends by itself."""

Command = Callable[[Path], Sequence[str]]


def write_audit(folder: Path) -> Command:
    """Write the models of a small audit, and return its command for an output folder."""
    (folder / "clients").mkdir()
    for number in range(CLIENTS + 1):
        torch.manual_seed(number)
        name = f"clients/client-{number}" if number else "global"
        save_file(
            get_state(build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)), folder / f"{name}.safetensors"
        )
    options = [
        "--input-shape",
        ",".join(map(str, SHAPE)),
        "--classes",
        str(CLASSES),
        "--set",
        "probe.steps=40",
    ]
    models = ["--global", str(folder / "global.safetensors"), "--clients", str(folder / "clients")]
    model = ["--model", "mlp", "--set", f"options.widths={WIDTHS}"]
    return lambda out: ["audit", *models, *model, *options, "--out", str(out), "--format", "json"]


def write_study(folder: Path) -> Command:
    """Write a small study, and return its command for an output folder."""
    from celm.cli import study as study_module
    from celm.study.local_pool import InThisProcess

    study_module.make_pool = lambda kind, workers, address: InThisProcess()  # type: ignore[assignment,return-value]
    (folder / "kills.toml").write_text(STUDY)
    return lambda out: ["study", str(folder / "kills.toml"), "--out", str(out), "--format", "json"]


def run_command(arguments: Sequence[str]) -> int:
    """Run the command in this process and return its exit code."""
    sys.argv = ["celm", *arguments]
    try:
        run_cli()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def start(arguments: Sequence[str]) -> int:
    """Fork a process that runs the command without output, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = run_command(arguments)
    finally:
        os._exit(code)


def stable_files(folder: Path) -> dict[str, bytes]:
    """Return the files that an unkilled and a resumed command must have in common."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix == ".lock":
            continue
        content = path.read_bytes()
        if path.name == "result.json":
            content = dump_json(without_seconds(json.loads(content))).encode()
        files[str(path.relative_to(folder))] = content
    return files


def without_seconds(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a run without its duration, and without the digest of its values."""
    return {key: value for key, value in result.items() if key not in ("seconds", "sha256")}


def measure(name: str, command: Command, folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill a command `kills` times and return the figures; a difference is an error."""
    started = time.monotonic()
    with redirect_stdout(io.StringIO()):
        run_command(command(folder / "imports"))
    for reference in ("whole", "again"):
        begun = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(start(command(folder / reference)), 0)[1]) == 0
        seconds = time.monotonic() - begun
    whole, again = stable_files(folder / "whole"), stable_files(folder / "again")
    compared = sorted(file for file in whole if Path(file).name not in MEASURED_FILES)
    assert all(whole[file] == again[file] for file in compared)
    killed = trials = most = 0
    files_at_kill = []
    while killed < kills:
        trials += 1
        out, attempts = folder / f"trial-{trials}", 0
        while True:
            begun, pid = time.monotonic(), start(command(out))
            if killed < kills and attempts < MAX_KILLS:
                time.sleep(draw.uniform(0, seconds))
                os.kill(pid, signal.SIGKILL)  # without effect if it has ended: nobody has waited for it yet
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code != -signal.SIGKILL:
                seconds = max(seconds, time.monotonic() - begun)  # other work may slow the machine down
                break
            killed, attempts = killed + 1, attempts + 1
            files_at_kill.append(sum(path.suffix != ".lock" and path.is_file() for path in out.rglob("*")))
        most = max(most, attempts)
        if code != 0:
            raise SystemExit(f"{name}: trial {trials} ended with exit code {code} after {attempts} kills")
        found = stable_files(out)
        different = sorted(
            {file for file in compared if found.get(file) != whole[file]} | (found.keys() ^ whole.keys())
        )
        if different:
            raise SystemExit(f"{name}: trial {trials} differs after {attempts} kills: {different}")
    return {
        "kills": killed,
        "trials": trials,
        "most_kills_of_a_trial": most,
        "kills_before_the_first_file": sum(count == 0 for count in files_at_kill),
        "kills_amid_files": sum(count > 0 for count in files_at_kill),
        "different": 0,
        "files_compared": len(compared),
        "files_with_measured_times": sorted(file for file in whole if file not in compared),
        "seconds": round(time.monotonic() - started),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["audit", "study"])
    parser.add_argument("--out", type=Path, default=Path("results/bench/kills.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for name, write in (("audit", write_audit), ("study", write_study)):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as temporary:
                command = write(Path(temporary))
                figures[name] = measure(
                    name, command, Path(temporary), options.kills, random.Random(options.seed)
                )
            print(name, figures[name], flush=True)
    write_text(options.out, json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
