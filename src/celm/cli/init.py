"""`celm init`: an experiment file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error, write_text
from celm.cli.output import stderr_console


def init_command(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.toml"),
) -> None:
    """Write an experiment file with every setting, its default and its meaning.

    [bold]Example[/bold]

      celm init my.toml && celm run my.toml
    """
    with os_errors_as_celm_error(path, "write"):
        if path.exists():
            raise CelmError(f"{path} already exists", "choose another name")
    from celm.experiment.template import render_template

    write_text(path, render_template())
    stderr_console.print(
        f"wrote {escape(str(path))}; run it with: celm run {escape(str(path))}", soft_wrap=True
    )
