"""`celm export`: the global model of a run or a federation, and contributions as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from celm.cli.output import stderr_console
from celm.records.federation_files import is_state_folder

if TYPE_CHECKING:
    from celm.records.signed.keys import SigningKey


def export_command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a finished run, or the state folder of a Flower strategy.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="model.safetensors (default): weights; model.pt2: a program for torch.export.load (runs)."
        ),
    ] = None,
    contributions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write each client's part in each round (.csv, .json or .parquet), and no model without --out.",
        ),
    ] = None,
    signing_key: Annotated[
        Path | None,
        typer.Option(
            metavar="KEY",
            help="Sign the model by this ECDSA key, for model-signing: writes model.sig beside it.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Your own model, pkg.module:factory, to confirm that the run may import it."),
    ] = None,
) -> None:
    """Export the global model, or the contributions, of a run or a federation.

    [bold]Examples[/bold]

      celm export runs/digits-celm-seed42 --out model.safetensors
      celm export runs/digits-celm-seed42 --out model.pt2
      celm export runs/own --out model.pt2 --model my_package.nets:make
      celm export /var/lib/celm/consortium --out global.safetensors
      celm export /var/lib/celm/consortium --out global/model.safetensors --signing-key ecdsa-key
      celm export /var/lib/celm/consortium --contributions contributions.csv
    """
    if contributions is not None:
        from celm.operations.contributions import write_contributions
        from celm.operations.folder_record import read_folder_record

        record = read_folder_record(folder)
        write_contributions(record, contributions)
        _print_written(contributions, f"; record SHA-256 {record.digest}")
        if out is None:
            return
    out = out or Path("model.safetensors")
    key = None if signing_key is None else _read_key(signing_key, out)
    if is_state_folder(folder):
        from celm.operations.model_export import export_global_model

        round_number = export_global_model(folder, out)
        _print_written(out, f": the global model after round {round_number}")
    else:
        _export_run(folder, out, model)
    if key is not None:
        from celm.records.signed.model_signature import sign_model

        _print_written(sign_model(out, key), f"; key id {key.public.id}")


def _read_key(path: Path, out: Path) -> SigningKey:
    """Read the key, and check that the model can be signed, before it is written."""
    from celm.records.signed.model_signature import make_model_folder, read_model_key

    key = read_model_key(path)
    make_model_folder(out)
    return key


def _export_run(folder: Path, out: Path, model: str | None) -> None:
    from celm.runs.run_folder import RunFolder

    run_folder = RunFolder.open(folder)
    from celm.runs.export import export_model
    from celm.runs.run import Run

    export_model(Run.read(run_folder), out, model)
    _print_written(out)


def _print_written(path: Path, note: str = "") -> None:
    stderr_console.print(f"wrote {escape(str(path))}{note}", soft_wrap=True)
