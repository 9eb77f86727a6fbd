"""Run what a page shows, and put what came out in the place of what it says: `python docs/replay.py tutorial.md`.

In one empty folder, from top to bottom: the lines after `$` of `console` blocks by the shell, the lines after `>>>`
of `pycon` blocks by Python. Pictures that the page shows and its code made are kept in `assets`. The tests replay
every page and compare, so no page shows what its code does not do.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGES = ("index.md", "tutorial.md", "faq.md", "api.md", "../README.md")
BLOCK = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[[^]]*\]\(assets/([\w-]+\.svg)\)")


def replay_page(text: str, assets: Path) -> str:
    """The page as it should be; its pictures are written to `assets`."""
    names: dict[str, Any] = {}

    def rerun(block: re.Match[str]) -> str:
        kind, source = block.groups()
        return (
            f"```{kind}\n{replay_console(source) if kind == 'console' else replay_python(source, names)}```"
        )

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        text = BLOCK.sub(rerun, text)
        for picture in PICTURE.findall(text):
            shutil.copy(picture, assets)
    return text


def replay_console(block: str) -> str:
    """Commands, each with its output; one ends where the next begins or, after a backslash, goes on."""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
    return "".join(f"$ {command}\n{run_command(command)}" for command in commands)


def run_command(command: str) -> str:
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "COLUMNS": "80", "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    completed = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)  # noqa: S603, S607
    output = completed.stdout + (
        completed.stderr if completed.returncode else ""
    )  # progress is for whoever waits
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def replay_python(block: str, names: dict[str, Any]) -> str:
    lines = []
    for example in doctest.DocTestParser().get_examples(block):
        first, *more = example.source.splitlines()
        lines += [f">>> {first}", *(f"... {line}" for line in more)]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.source, "<page>", "single"), names)  # noqa: S102 - the project's own pages
        lines += printed.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    for page in sys.argv[1:] or PAGES:
        path = DOCS / page
        path.write_text(replay_page(path.read_text(encoding="utf-8"), DOCS / "assets"), encoding="utf-8")
