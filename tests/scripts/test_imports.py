"""Every script can be imported, so that a rename cannot break it unseen, and does nothing on import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    str(path.relative_to(REPOSITORY))
    for folder in ("results", "benchmarks", "examples")
    for path in (REPOSITORY / folder).rglob("*.py")
    if path.parent.name != "rivals"
)
RIVALS = REPOSITORY / "benchmarks/rivals"
"""Loops of other libraries. They run in an environment of their own and do not import celm."""
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] in ("fedlab", "fluke", "pfl"), error
"""


def test_there_are_scripts_of_every_kind() -> None:
    assert {"results/collect.py", "benchmarks/page.py", "examples/demo.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_can_be_imported_and_does_nothing(
    path: str,
    load_script: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CELM_DATA", str(tmp_path))
    load_script(path)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_rivals_can_be_imported_and_do_nothing(tmp_path: Path) -> None:
    names = [path.stem for path in sorted(RIVALS.glob("*.py"))]
    assert "plain" in names
    assert all("celm" not in (RIVALS / f"{name}.py").read_text() for name in names)
    # In another process: one of them registers operators with PyTorch on import.
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(RIVALS)!r})\n{IMPORT_ALL}", *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(tmp_path.iterdir()) == []
