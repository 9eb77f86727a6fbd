"""`celm data`: datasets on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from celm.base.errors import CelmError
from celm.cli.output import Format, console, notes, print_json

FormatOption = Annotated[Format, typer.Option(help="text for people, json for machines.")]


def listing(format: FormatOption = Format.text) -> None:
    """List the datasets and say which are here.

    [bold]Example[/bold]

      celm data list
    """
    from celm.data import holdings

    rows = holdings.listing()
    if format is Format.json:
        print_json(
            {
                "datasets": [
                    {
                        "name": row.name,
                        "present": row.present,
                        "origin": str(row.origin),
                        "where": None if row.where is None else str(row.where),
                        "train": row.train,
                        "test": row.test,
                        "shape": None if row.shape is None else list(row.shape),
                        "classes": row.classes,
                        "download_size": row.download_size,
                        "licence": row.licence,
                        "problem": row.problem,
                    }
                    for row in rows
                ]
            }
        )
        return
    table = Table()
    for column in ("dataset", "here", "train", "test", "shape", "classes", "download", "licence", "where"):
        table.add_column(
            column, justify="right" if column in ("train", "test", "classes", "download") else "left"
        )
    for row in rows:
        table.add_row(
            escape(row.name),
            "[green]yes[/green]" if row.present else "no",
            "" if row.train is None else f"{row.train:,}",
            "" if row.test is None else f"{row.test:,}",
            "" if row.shape is None else "x".join(map(str, row.shape)),
            "" if row.classes is None else str(row.classes),
            "" if row.download_size is None else f"{row.download_size / 1e6:.0f} MB",
            escape(row.licence or ""),
            escape(row.problem or str(row.where or row.origin)),
        )
    console().print(table)


def get(name: Annotated[str, typer.Argument(help="A dataset's name.")]) -> None:
    """Download a dataset, checked and complete or not at all.

    [bold]Example[/bold]

      celm data get fashion_mnist
    """
    from celm.data import holdings

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        task = progress.add_task(escape(name), total=None)

        def watch(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total or None)

        folder = holdings.get(name, watch)
    notes.print(f"{escape(name)} is in {escape(str(folder))}", soft_wrap=True)


def check(
    name: Annotated[
        str | None, typer.Argument(help="A dataset's name; all that are here by default.")
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Check the files of a dataset: checksums and row counts.

    [bold]Example[/bold]

      celm data check fashion_mnist
    """
    from celm.data import holdings

    present = [row.name for row in holdings.listing() if row.present]
    reports = [holdings.check(each) for each in ([name] if name else present)]
    problems = [problem for report in reports for problem in report.problems]
    if format is Format.json:
        print_json(
            {
                "checked": [
                    {
                        "name": report.name,
                        "folder": str(report.folder),
                        "kind": report.kind,
                        "rows": None if report.rows is None else list(report.rows),
                        "files": [
                            {"path": str(file.path), "size": file.size, "checksum": str(file.checksum)}
                            for file in report.files
                        ],
                        "problems": list(report.problems),
                    }
                    for report in reports
                ]
            }
        )
    else:
        table = Table()
        for column in ("dataset", "form", "rows", "files", "checksums", "verdict"):
            table.add_column(column)
        for report in reports:
            known = [str(file.checksum) for file in report.files]
            table.add_row(
                escape(report.name),
                report.kind,
                "" if report.rows is None else " + ".join(f"{count:,}" for count in report.rows),
                str(len(report.files)),
                ", ".join(f"{known.count(kind)} {kind}" for kind in sorted(set(known))),
                "[green]good[/green]" if report.ok else "[red]bad[/red]",
            )
        console().print(table)
    if problems:
        raise CelmError("; ".join(problems))
