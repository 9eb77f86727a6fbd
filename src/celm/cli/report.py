"""`celm report`: a run, a study or a Flower federation as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celm.cli.output import Format, console, print_json


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_STUDY_DIR",
            help="Folder of a run, compare or study, or the state of a Flower strategy.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file; by default report.html in the folder itself.")
    ] = None,
    probe_images: Annotated[
        bool,
        typer.Option("--probe-images", help="Show the inputs at which the probes ended; members may mind."),
    ] = False,
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """Write a report: one HTML file that needs no network and can be mailed to the members.

    [bold]Examples[/bold]

      celm report runs/digits-celm-seed42

      celm report compare/digits-pls --out table.html

      celm report runs/baseline --probe-images --format json

      celm report /var/lib/celm/consortium --out contributions.html
    """
    from celm.report.html import write_report

    place = write_report(path, out, probe_images)
    if format is Format.json:
        print_json({"report": str(place.resolve())})
    else:
        console().print(f"report: {escape(str(place))}", soft_wrap=True)
