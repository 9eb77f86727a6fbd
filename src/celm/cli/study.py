"""`celm study`: a grid of runs that fills a table of the paper."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.output import Format, print_json, print_warning, printable, stdout_console
from celm.cli.progress_view import log_finished_runs, progress_view
from celm.cli.tables import comparison_table

if TYPE_CHECKING:
    from celm.study.local_pool import ProcessPool
    from celm.study.ray_pool import RayPool


class PoolName(StrEnum):
    local = "local"
    ray = "ray"


def study_command(
    name: Annotated[
        str,
        typer.Argument(help="Name of a study (`celm list studies`), or the .toml file of your own study."),
    ],
    scale: Annotated[
        str, typer.Option(help="paper, quick (real data, fewer rounds) or smoke (seconds).")
    ] = "paper",
    only: Annotated[
        str,
        typer.Option(help="Run only a part, as in 'dataset=fashion_mnist split=pls method=celm,fedavg'."),
    ] = "",
    workers: options.ParallelRunsOption = None,
    pool: Annotated[
        PoolName, typer.Option(help="Where to run: on this machine, or on a Ray cluster.")
    ] = PoolName.local,
    address: options.AddressOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the number of runs and their estimated duration.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; by default studies/NAME-SCALE.")] = None,
    log: options.LogOption = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Fill a table of the paper: our figures, the paper's and the difference.

    If the study is stopped or killed, the same command runs what is missing.
    An unfinished run resumes from its last round. With --only, the table
    shows this part and all runs that the folder already contains. The same
    command, started several times on one machine or on a shared file system,
    divides the runs among its processes.

    With --pool ray, runs execute on a Ray cluster. Its nodes need celm and
    the datasets but no shared file system: a run's folder is sent to its node
    and copied back every few seconds.

    [bold]Examples[/bold]

      celm study main --scale smoke
      celm study maverick --only dataset=fashion_mnist --workers 2
      celm study main --pool ray --address auto
      celm study main --dry-run
    """
    from celm.report.formatting import format_duration
    from celm.study.cost_estimate import estimate_cost
    from celm.study.plan import plan_runs
    from celm.study.run_study import raise_study_failures
    from celm.study.scales import Scale
    from celm.study.scheduler import run_all
    from celm.study.spec import load_study
    from celm.study.study_folder import StudyFolder

    study, targets = load_study(name), options.log_targets(log)
    if address is not None and pool is PoolName.local:
        raise CelmError("--address needs --pool ray")
    if scale not in list(Scale):
        raise CelmError(f"--scale: unknown scale '{scale}'", f"one of: {', '.join(Scale)}")
    study_scale = Scale(scale)
    folder = out or Path("studies") / f"{study.name}-{scale}"
    specs = plan_runs(study, study_scale, folder, only)
    if dry_run:
        cost = estimate_cost(list(specs.values()))
        if format is Format.json:
            print_json({"study": study.name, "scale": scale, **cost})
        else:
            damaged = f", {cost['damaged']} damaged" if cost["damaged"] else ""
            title = printable(study.title + study_scale.note)
            stdout_console().print(
                Text(f"{title}: {cost['runs']} runs, {cost['done']} of them done{damaged}")
            )
            stdout_console().print(f"about {format_duration(3600 * cost['hours'])} on one core")
        raise_study_failures(cost["errors"], len(specs), "cannot be run")
        return
    study_folder = StudyFolder(study, name, study_scale, folder, only, specs)
    try:
        with progress_view(study.name, quiet=format is Format.json) as callback:
            results = run_all(
                list(specs.values()),
                lambda: make_pool(pool, workers, address),
                study_folder.autosave(log_finished_runs(callback, targets)),
            )
    except KeyboardInterrupt:
        study_folder.write_partial(print_warning)
        raise
    output = study_folder.write(dict(zip(specs, results, strict=True)))
    table, times = output.table, output.times
    if format is Format.json:
        print_json(
            {
                "folder": str(folder.resolve()),
                "study": study.name,
                "scale": scale,
                **table.to_json(),
                **({"times": times.to_json()["cells"]} if times.rows else {}),
                "errors": output.errors,
            }
        )
    else:
        stdout_console().print(comparison_table(table, stdout_console().width))
        if times.rows:
            stdout_console().print(comparison_table(times, stdout_console().width))
        if study.about:
            stdout_console().print(Text(printable(" ".join(study.about.split())), style="dim"))
        stdout_console().print(Text(f"folder: {printable(str(folder))}"), soft_wrap=True)
    raise_study_failures(output.failed, len(specs), "failed")


def make_pool(kind: PoolName, workers: int | None, address: str | None) -> ProcessPool | RayPool:
    if kind is PoolName.ray:
        from celm.study.ray_pool import RayPool

        return RayPool(workers, address)
    from celm.study.local_pool import ProcessPool

    return ProcessPool(workers)
