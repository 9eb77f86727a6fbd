"""What the pages and the notebook show is what comes out, up to the rounding in which machines differ."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = re.compile(r"in \d+\.\d s\b")
BARS = re.compile("[█▓▒░·]+")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

pytestmark = pytest.mark.slow


def parts(text: str) -> tuple[str, list[float]]:
    """The words, and the numbers, of a page; seconds and bars are neither."""
    text = BARS.sub("", SECONDS.sub("", text))
    return " ".join(NUMBER.sub("#", text).split()), [float(number) for number in NUMBER.findall(text)]


def assert_same(shown: str, found: str) -> None:
    (words, numbers), (own_words, own_numbers) = parts(shown), parts(found)
    assert own_words == words
    # As for golden runs: 5 points of a percentage, 0.06 of a fraction; what is small is a fraction.
    for number, own in zip(numbers, own_numbers, strict=True):
        assert own == pytest.approx(number, abs=0.06 if abs(number) <= 1 else 5, rel=0.1)


@pytest.fixture
def replay(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    yield importlib.import_module("replay")
    sys.modules.pop("replay", None)


@pytest.mark.parametrize("page", ["index.md", "tutorial.md", "faq.md", "api.md", "../README.md"])
def test_page_shows_what_comes_out(page, replay, tmp_path):
    assert page in replay.PAGES
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert_same(text, replay.replay_page(text, tmp_path))
    pictures = {path.name for path in tmp_path.iterdir()}
    assert pictures == set(replay.PICTURE.findall(text))
    assert all((ROOT / "docs" / "assets" / name).is_file() for name in pictures)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_comes_out(notebook, tmp_path):
    import nbformat

    shown, unrun = nbformat.read(notebook, 4), nbformat.read(notebook, 4)
    for cell in unrun.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(unrun, tmp_path / notebook.name)
    # In a process of its own: what Jupyter warns of is not for our tests to fail on.
    run = "from nbclient.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run, notebook.name, "--inplace", "--timeout", "300"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = nbformat.read(tmp_path / notebook.name, 4)
    for cell, own in zip(shown.cells, found.cells, strict=True):
        assert_same(printed(cell), printed(own))
        assert pictures(cell) == pictures(own)
    assert sum(map(pictures, shown.cells)) >= 2
    assert len(shown.cells) < 30
    assert notebook.stat().st_size < 250_000


def test_there_are_four_notebooks():
    names = ["audit_checkpoints", "own_data_and_model", "own_rule", "quickstart"]
    assert [notebook.stem for notebook in NOTEBOOKS] == names


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def pictures(cell) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
