"""`celm payout`: a budget divided by what clients earned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from celm.cli import options
from celm.cli.output import Format, print_json, printable, stderr_console, stdout_console

if TYPE_CHECKING:
    from celm.operations.payout import Payout


def payout_command(
    folder: Annotated[Path, typer.Argument(help="State folder of a Flower strategy, or folder of a run.")],
    budget: Annotated[
        str, typer.Option(metavar="AMOUNT", help="The amount to divide, such as 10000 or 99.50.")
    ],
    scheme: Annotated[
        str,
        typer.Option(
            help="proportional: by what clients earned; floor: a part equally, the rest so; participation: by rounds."
        ),
    ] = "proportional",
    floor: Annotated[
        float, typer.Option(help="With --scheme floor: the part that is divided equally.")
    ] = 0.2,
    decimals: Annotated[int, typer.Option(help="Decimals of the currency.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="Also write the table to this .csv, .json or .parquet file.")
    ] = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Divide a budget among the clients, by the record of a federation.

    The record is verified first, and its digest is in the output. Amounts are
    rounded so that they add up to the budget.

    [bold]Examples[/bold]

      celm payout /var/lib/celm/consortium --budget 10000
      celm payout /var/lib/celm/consortium --budget 10000 --scheme floor --out payout.csv
      celm payout runs/digits-celm-seed42 --budget 99.50 --scheme participation --format json
    """
    from celm.operations.contributions import json_rows, write_table
    from celm.operations.folder_record import read_folder_record
    from celm.operations.payout import divide_budget

    payout = divide_budget(read_folder_record(folder), budget, scheme, floor, decimals)
    if out is not None:
        write_table(payout.rows(), out, payout.digest)
        stderr_console.print(Text(f"wrote {out}"), soft_wrap=True)
    if format is Format.json:
        print_json(
            {
                "folder": str(folder.resolve()),
                "scheme": payout.scheme.value,
                "budget": float(payout.budget),
                "rounds": payout.rounds,
                "record": payout.digest,
                "amounts": {payment.client: float(payment.amount) for payment in payout.payments},
                "payments": json_rows(payout.rows()),
            }
        )
    else:
        _print_payout(payout)


def _print_payout(payout: Payout) -> None:
    table = Table(header_style="bold", show_footer=True)
    table.add_column("client", "total", overflow="fold")
    table.add_column("rounds", justify="right")
    table.add_column("earned", justify="right")
    table.add_column("share", "100.00 %", justify="right")
    table.add_column("amount", f"{payout.budget:,f}", justify="right")
    for payment in payout.payments:
        table.add_row(
            Text(printable(payment.client)),
            f"{payment.rounds_trained} of {payout.rounds}",
            f"{100 * payment.earned:.2f} %",
            f"{100 * float(payment.share):.2f} %",
            f"{payment.amount:,f}",
        )
    console = stdout_console()
    console.print(table)
    console.print(
        f"scheme {payout.scheme.value}; after round {payout.rounds}; record SHA-256 {payout.digest}",
        soft_wrap=True,
    )
