"""`celm export`: the global model of a run, for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celm.cli.output import notes
from celm.federation.folder import Folder


def command(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    out: Annotated[
        Path, typer.Option(help="model.safetensors: weights; model.pt2: a program for torch.export.load.")
    ] = Path("model.safetensors"),
) -> None:
    """Export a run's global model.

    [bold]Examples[/bold]

      celm export runs/digits-celm-seed42 --out model.safetensors

      celm export runs/digits-celm-seed42 --out model.pt2
    """
    folder = Folder.open(run)
    from celm.federation.export import export_model
    from celm.federation.run import Run

    export_model(Run.read(folder), out)
    notes.print(f"wrote {escape(str(out))}", soft_wrap=True)
