"""How tests start `celm`: as a process of its own, or in this one where a process is not the point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner, Result

# The same examples in every run, and no opinion on how fast this machine is.
settings.register_profile(
    "celm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("celm")

# Some virtual machines announce AMX and cannot execute it; a bfloat16 product would end the test run.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Tests run side by side: more threads in each would only wait for one another, at three times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# Ray's workers stand back for everybody else by default, so that tests beside them would starve those of a cluster.
os.environ.setdefault("RAY_worker_niceness", "0")


class Kernels(TorchDispatchMode):
    """Counts the operations that PyTorch is asked for, and the values in each new tensor: no clock, no noise."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        found = function(*arguments, **(keywords or {}))
        self.calls[function.overloadpacket.__name__] += 1
        for made in found if isinstance(found, tuple | list) else [found]:
            if isinstance(made, Tensor) and made._base is None:
                self.largest = max(self.largest, made.untyped_storage().nbytes() // made.element_size())
        return found


@pytest.fixture
def kernels() -> type[Kernels]:
    return Kernels


Process = subprocess.Popen[str]
Finished = subprocess.CompletedProcess[str]


def command_line(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "celm", *map(str, arguments)]


@pytest.fixture
def celm(tmp_path: Path) -> Callable[..., Finished]:
    """Run `celm` as a process, by default in the test's own folder, and wait for it."""

    def run(*arguments: object, cwd: Path = tmp_path, **environment: str) -> Finished:
        return subprocess.run(
            command_line(arguments),
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


@pytest.fixture
def start_celm(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `celm` as a process that leads a group of its own; what is left of it ends with the test."""
    started: list[Process] = []

    def start(*arguments: object, cwd: Path = tmp_path, **environment: str) -> Process:
        process = subprocess.Popen(
            command_line(arguments),
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # As from a terminal: whoever runs the tests in the background may have Ctrl-C ignored, which is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`celm` in this process, in the test's own folder, on a wide terminal."""
    from celm.cli.app import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def refused(invoke: Callable[..., Result]) -> Callable[..., str]:
    """The one line on stderr of a command that must fail as the user's own mistake does."""

    def run(*arguments: object) -> str:
        result = invoke(*arguments)
        assert result.exit_code == 2, (result.output, result.exception)
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.stderr
        return result.stderr

    return run


@pytest.fixture
def kept_files() -> Callable[[Path], dict[str, bytes]]:
    """Return the files of a run folder by name, without its lock."""

    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "run.lock")
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read


@pytest.fixture
def outcome() -> Callable[[Path], dict[str, Any]]:
    """Return what must not depend on how a run was executed: record, model, and result without its time."""

    def read(folder: Path) -> dict[str, Any]:
        result = json.loads((folder / "result.json").read_text())
        del result["seconds"]
        # The settings have the number of workers, and this checksum covers theirs.
        del result["sha256"], result["files"]["settings.toml"]
        return {
            "rounds": (folder / "rounds.jsonl").read_bytes(),
            "model": (folder / "model.safetensors").read_bytes(),
            "result": result,
        }

    return read


@pytest.fixture
def ray_workers() -> Callable[[int, str], list[int]]:
    """The processes of Ray's below this one that have a task of this name in hand."""

    def working(ancestor: int, task: str) -> list[int]:
        parents, titles = {}, {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    stat = (process / "stat").read_bytes()
                    parents[int(process.name)] = int(stat.rpartition(b")")[2].split()[1])
                    titles[int(process.name)] = (process / "cmdline").read_bytes()
                except OSError:
                    continue  # it has ended meanwhile
        found = []
        for pid, title in titles.items():
            above = pid
            while above in parents and above != ancestor:
                above = parents[above]
            if above == ancestor and title.startswith(f"ray::{task}".encode()):
                found.append(pid)
        return found

    return working


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the real datasets, which `CELM_DATA` names during the test."""
    named = os.environ.get("CELM_TEST_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real datasets in {folder}; set CELM_TEST_DATA to a folder that has them")
    monkeypatch.setenv("CELM_DATA", str(folder))
    return folder
