"""`celm data list`, `get` and `check`: datasets on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.output import Format, print_json, stderr_console, stdout_console


def data_list_command(format: options.FormatOption = Format.text) -> None:
    """List the datasets, and whether each is present on this machine.

    [bold]Example[/bold]

      celm data list
    """
    from celm.data import inventory
    from celm.data.files.locate import data_root

    rows = inventory.list_datasets()
    if format is Format.json:
        print_json(
            {
                "datasets": [
                    {
                        "name": row.name,
                        "present": row.present,
                        "origin": str(row.origin),
                        "where": None if row.folder is None else str(row.folder),
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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("dataset", "train", "test", "shape", "classes", "download", "where"):
        table.add_column(
            column,
            justify="right" if column in ("train", "test", "classes", "download") else "left",
            no_wrap=column != "where",
            overflow="fold",
        )
    for row in rows:
        location = row.problem or ("here" if row.folder and row.origin != "bundled" else str(row.origin))
        table.add_row(
            escape(row.name),
            "" if row.train is None else f"{row.train:,}",
            "" if row.test is None else f"{row.test:,}",
            "" if row.shape is None else "x".join(map(str, row.shape)),
            "" if row.classes is None else str(row.classes),
            "" if row.download_size is None else f"{row.download_size / 1e6:.0f} MB",
            f"[green]{escape(location)}[/green]" if row.present else escape(location),
        )
    terminal = stdout_console()
    terminal.print(table)
    terminal.print(f"downloads: {escape(str(data_root()))}", style="dim", soft_wrap=True)
    terminal.print("folders, licences and more: celm data list --format json", style="dim", soft_wrap=True)


def data_get_command(name: Annotated[str, typer.Argument(help="Name of a dataset.")]) -> None:
    """Download a dataset and verify its checksums; an incomplete download is never used.

    [bold]Example[/bold]

      celm data get fashion_mnist
    """
    from celm.data import inventory

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, console=stderr_console, transient=True, disable=not stderr_console.is_terminal
    ) as progress:
        task = progress.add_task(escape(name), total=None)

        def update_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total or None)

        folder = inventory.download_dataset(name, update_progress)
    stderr_console.print(f"{escape(name)} is in {escape(str(folder))}", soft_wrap=True)


def data_check_command(
    name: Annotated[
        str | None, typer.Argument(help="Name of a dataset; by default all that are present.")
    ] = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Check the files of a dataset: checksums and row counts.

    [bold]Examples[/bold]

      celm data check
      celm data check fashion_mnist
    """
    from celm.data import inventory

    present = [row.name for row in inventory.list_datasets() if row.present]
    reports = [inventory.check_dataset(dataset_name) for dataset_name in ([name] if name else present)]
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
        for column in ("dataset", "format", "rows", "files", "checksums", "result"):
            table.add_column(column)
        for report in reports:
            checksum_states = [str(file.checksum) for file in report.files]
            table.add_row(
                escape(report.name),
                report.kind,
                "" if report.rows is None else " + ".join(f"{count:,}" for count in report.rows),
                str(len(report.files)),
                ", ".join(f"{checksum_states.count(kind)} {kind}" for kind in sorted(set(checksum_states))),
                "[green]good[/green]" if report.ok else "[red]bad[/red]",
            )
        stdout_console().print(table)
    if problems:
        raise CelmError("; ".join(problems))
