"""`celm report`: a run, a comparison, a study or a Flower federation as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celm.cli import options
from celm.cli.output import Format, print_json, stdout_console


def report_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_STUDY_DIR",
            help="Folder of a run, comparison or study, or the state folder of a Flower strategy.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default report.html in the folder.")
    ] = None,
    probe_images: Annotated[
        bool,
        typer.Option(
            "--probe-images",
            help="Show the final inputs of the probes; members may not want them published.",
        ),
    ] = False,
    format: options.FormatOption = Format.text,
) -> None:
    """Write a report: one HTML file that needs no network and can be mailed to the members.

    [bold]Examples[/bold]

      celm report runs/digits-celm-seed42
      celm report compare/digits-pls --out table.html
      celm report runs/baseline --probe-images --format json
      celm report /var/lib/celm/consortium --out contributions.html
    """
    from celm.report.build import write_report

    report_path = write_report(path, out, probe_images)
    if format is Format.json:
        print_json({"report": str(report_path.resolve())})
    else:
        stdout_console().print(f"report: {escape(str(report_path))}", soft_wrap=True)
