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
PAGES = ("index.md", "tutorial.md", "faq.md")
BLOCK = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[[^]]*\]\(assets/([\w-]+\.svg)\)")


def replayed(text: str, assets: Path) -> str:
    """The page as it should be; its pictures are written to `assets`."""
    names: dict[str, Any] = {}

    def again(block: re.Match[str]) -> str:
        kind, shown = block.groups()
        return f"```{kind}\n{console(shown) if kind == 'console' else python(shown, names)}```"

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        text = BLOCK.sub(again, text)
        for picture in PICTURE.findall(text):
            shutil.copy(picture, assets)
    return text


def console(block: str) -> str:
    """Commands, each with its output; one ends where the next begins or, after a backslash, goes on."""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
    return "".join(f"$ {command}\n{shell(command)}" for command in commands)


def shell(command: str) -> str:
    own = Path(sys.executable).parent
    environment = {**os.environ, "COLUMNS": "100", "PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)  # noqa: S603, S607
    shown = done.stdout + (done.stderr if done.returncode else "")  # progress is for whoever waits
    return "".join(f"{line.rstrip()}\n" for line in shown.splitlines())


def python(block: str, names: dict[str, Any]) -> str:
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
        path.write_text(replayed(path.read_text(encoding="utf-8"), DOCS / "assets"), encoding="utf-8")
