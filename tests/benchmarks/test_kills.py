"""The script that kills commands at random moments, with few kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_commands_that_are_killed_and_repeated_give_the_bytes_of_an_unkilled_run(
    benchmarks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "kills.json"
    command = [sys.executable, str(benchmarks / "kills.py"), "--kills", "6", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {name: (row["kills"], row["different"]) for name, row in report.items()} == {
        "audit": (6, 0),
        "study": (6, 0),
    }
    assert min(row["files_compared"] for row in report.values()) > 5
