"""Every benchmark of the probe and of averaging runs in its quick form and writes its report, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["probing", "cheaper_probes", "scaling", "averaging"])
def test_it_runs_and_writes_its_report_and_nothing_else(
    name: str, benchmarks: Path, real_data: Path, tmp_path: Path
) -> None:
    out, work = tmp_path / "report.json", tmp_path / "work"
    work.mkdir()
    command = [sys.executable, str(benchmarks / f"{name}.py"), "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())
    assert list(work.iterdir()) == []
