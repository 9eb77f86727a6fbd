"""The `celm` program: its commands and its entry point."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from celm import __version__
from celm.base.huge_pages import enable_huge_pages
from celm.base.renames import RENAMED_OPTIONS, renamed_hint
from celm.cli.audit import audit_command
from celm.cli.audit_verify import audit_verify_command
from celm.cli.check import check_command
from celm.cli.compare import compare_command
from celm.cli.data import data_check_command, data_get_command, data_list_command
from celm.cli.export import export_command
from celm.cli.init import init_command
from celm.cli.keys import keys_make_command, keys_revoke_command, keys_rotate_command, keys_show_command
from celm.cli.list import list_command
from celm.cli.output import print_error, with_exit_codes
from celm.cli.payout import payout_command
from celm.cli.report import report_command
from celm.cli.run import run_command
from celm.cli.split import split_command
from celm.cli.study import study_command
from celm.cli.verify_proof import verify_proof_command
from celm.cli.watch import watch_command

_UsageError: Any = typer.BadParameter.__base__
"""Base of click's usage errors. Typer may bring its own copy of click, so it is not imported by name."""

app = typer.Typer(
    name="celm",
    help="Measure what each client of a federation contributed, class by class, without seeing any data.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click suggests them itself
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"celm {__version__}")
        raise typer.Exit


@app.callback()
def root_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("run")(with_exit_codes(run_command))
app.command("compare")(with_exit_codes(compare_command))
app.command("study")(with_exit_codes(study_command))
app.command("audit")(with_exit_codes(audit_command))
app.command("audit-verify")(with_exit_codes(audit_verify_command))
app.command("verify-proof")(with_exit_codes(verify_proof_command))
app.command("report")(with_exit_codes(report_command))
app.command("watch")(with_exit_codes(watch_command))
app.command("check")(with_exit_codes(check_command))
app.command("split")(with_exit_codes(split_command))
app.command("init")(with_exit_codes(init_command))
app.command("list")(with_exit_codes(list_command))
app.command("export")(with_exit_codes(export_command))
app.command("payout")(with_exit_codes(payout_command))

data_app = typer.Typer(
    help="List, download and check datasets.\n\n[bold]Example[/bold]\n\n  celm data list",
    no_args_is_help=True,
)
data_app.command("list")(with_exit_codes(data_list_command))
data_app.command("get")(with_exit_codes(data_get_command))
data_app.command("check")(with_exit_codes(data_check_command))
app.add_typer(data_app, name="data")

keys_app = typer.Typer(
    help="Make, show, rotate and revoke the key that signs a record.\n\n"
    "[bold]Example[/bold]\n\n  celm keys make /etc/celm/consortium",
    no_args_is_help=True,
)
keys_app.command("make")(with_exit_codes(keys_make_command))
keys_app.command("show")(with_exit_codes(keys_show_command))
keys_app.command("rotate")(with_exit_codes(keys_rotate_command))
keys_app.command("revoke")(with_exit_codes(keys_revoke_command))
app.add_typer(keys_app, name="keys")


def main() -> None:
    """Run the `celm` script."""
    enable_huge_pages()
    try:
        code = app(prog_name="celm", standalone_mode=False)
    except _UsageError as error:
        # A command group without arguments prints its help and has an empty message.
        if problem := error.format_message():
            print_error(*_describe_usage_error(error, problem))
        code = 2
    except typer.Abort:
        code = 130
    sys.exit(code)


def _describe_usage_error(error: Any, problem: str) -> tuple[str, str | None]:
    """Return a message and a hint: the new name of a renamed option, or else the command whose help to read."""
    if error.ctx is None:
        return problem, None
    old_option = getattr(error, "option_name", "")
    if new_option := RENAMED_OPTIONS.get(error.ctx.command.name, {}).get(old_option):
        return f"No such option '{old_option}'.", renamed_hint(new_option)  # without click's guesses
    return problem, f"see {error.ctx.command_path} --help"
