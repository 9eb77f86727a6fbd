"""`celm check`: what in a run or a federation needs attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from celm.cli import options
from celm.cli.output import Format, print_json, printable, stdout_console

if TYPE_CHECKING:
    from celm.operations.check import CheckResult

FOUND_EXIT_CODE = 4


def check_command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run, or the state folder of a Flower strategy.")
    ],
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Report all rounds of this time, such as 12h or 2d; by default each client's last round.",
        ),
    ] = None,
    stalled_after: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="A federation with rounds left and none for this time has stalled."
        ),
    ] = "24h",
    format: options.FormatOption = Format.text,
) -> None:
    """Check a federation for flags, exclusions, collapsed accuracy and a stall.

    The record is verified first. Nothing is written, so the server may be
    running. A failed attempt at the next round counts as a stall at once.

    Exit code 0: nothing found; 4: something found; 2: the record cannot be
    read, or was changed.

    [bold]Examples[/bold]

      celm check /var/lib/celm/consortium
      celm check /var/lib/celm/consortium --since 12h --stalled-after 2h
      celm check /var/lib/celm/consortium --format json || notify-operator
    """
    from celm.operations.check import check_folder, parse_duration

    result = check_folder(
        folder, None if since is None else parse_duration(since), parse_duration(stalled_after)
    )
    if format is Format.json:
        print_json(result.to_json())
    else:
        _print_result(result)
    if result.found:
        raise typer.Exit(FOUND_EXIT_CODE)


def _print_result(result: CheckResult) -> None:
    console = stdout_console()
    of = f" of {result.rounds}" if result.rounds else ""
    accuracy = "" if result.accuracy is None else f"; accuracy {100 * result.accuracy:.2f} %"
    console.print(
        f"round {result.round}{of} ended {result.time:%Y-%m-%d %H:%M} UTC{accuracy}", soft_wrap=True
    )
    findings = [
        *(("flagged", f"{client}: {reason}") for client, reason in result.flags.items()),
        *(("excluded", f"{client}: {reason}") for client, reason in result.excluded.items()),
        *(("accuracy", text) for text in result.alarms),
        *([("stalled", result.stalled)] if result.stalled else []),
    ]
    for kind, text in findings:
        console.print(Text.assemble((f"{kind}: ", "bold red"), printable(text)), soft_wrap=True)
    if not findings:
        console.print("nothing found")
