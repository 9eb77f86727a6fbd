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
    model: Annotated[
        str | None,
        typer.Option(help="The run's own model, pkg.module:factory, to confirm that it may be imported."),
    ] = None,
) -> None:
    """Export a run's global model.

    [bold]Examples[/bold]

      celm export runs/digits-celm-seed42 --out model.safetensors

      celm export runs/digits-celm-seed42 --out model.pt2

      celm export runs/own --out model.pt2 --model my_package.nets:make
    """
    folder = Folder.open(run)
    from celm.federation.export import export_model
    from celm.federation.run import Run

    export_model(Run.read(folder), out, model)
    notes.print(f"wrote {escape(str(out))}", soft_wrap=True)
