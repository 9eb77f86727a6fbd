"""`celm`: the commands."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from celm import __version__
from celm.base.memory import use_large_pages
from celm.cli import audit, catalogue, compare, data, export, report, run, split, study
from celm.cli.output import complain, with_exit_codes

UsageError: Any = typer.BadParameter.__base__
"""Of the click that typer uses: its own, or the package of that name."""

app = typer.Typer(
    name="celm",
    help="What each client of a federation contributed, class by class, without seeing any data.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click makes one itself
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"celm {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


app.command("run")(with_exit_codes(run.command))
app.command("compare")(with_exit_codes(compare.command))
app.command("study")(with_exit_codes(study.command))
app.command("audit")(with_exit_codes(audit.command))
app.command("audit-verify")(with_exit_codes(audit.verify))
app.command("report")(with_exit_codes(report.command))
app.command("split")(with_exit_codes(split.command))
app.command("init")(with_exit_codes(catalogue.init))
app.command("list")(with_exit_codes(catalogue.list_things))
app.command("export")(with_exit_codes(export.command))

data_app = typer.Typer(help="Datasets: what is there, fetch, check.", no_args_is_help=True)
data_app.command("list")(with_exit_codes(data.listing))
data_app.command("get")(with_exit_codes(data.get))
data_app.command("check")(with_exit_codes(data.check))
app.add_typer(data_app, name="data")


def main() -> None:
    """The entry point of the `celm` script."""
    use_large_pages()
    try:
        code = app(prog_name="celm", standalone_mode=False)
    except UsageError as error:
        # Of a command without arguments this prints its help, and there is no more to say.
        if problem := error.format_message():
            complain(problem, f"see {error.ctx.command_path} --help" if error.ctx else None)
        code = 2
    except typer.Abort:
        code = 130
    sys.exit(code)
