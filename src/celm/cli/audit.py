"""`celm audit`: a contribution report from saved checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from celm.base.errors import CelmError
from celm.base.text import format_exception
from celm.cli import options
from celm.cli.output import Format, print_json, print_warning, printable, stderr_console, stdout_console
from celm.experiment.overrides import parse_toml_value
from celm.experiment.presets import with_audit_preset

if TYPE_CHECKING:
    from celm.auditing.result import Audit
    from celm.records.signed.keys import SigningKey

_EXIT_SOME_EXCLUDED = 3
"""Exit code of a finished audit that excluded clients."""
_MAX_LISTED_FILES = 5
_MAX_LISTED_CLIENTS = 50
"""Lines on the screen of flagged clients, of excluded clients, and of notes."""


def audit_command(
    clients: Annotated[list[Path], typer.Option(help="Folder of client models, or a file; repeatable.")],
    model: Annotated[
        str,
        typer.Option(help="Model name, pkg.module:factory, or a folder with a Hugging Face config.json."),
    ],
    classes: Annotated[str, typer.Option(help="Number of classes, or their names, separated by commas.")],
    global_model: Annotated[
        Path | None,
        typer.Option(
            "--global",
            help="Model that the clients started from; not needed if each round's folder has a global.*",
        ),
    ] = None,
    input_shape: Annotated[
        str | None,
        typer.Option(help="Shape of one input, as in 3,32,32; a Hugging Face folder may provide it."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the report and the ledger; a stopped audit continues there."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first client that cannot be audited.")
    ] = False,
    num_starts: Annotated[
        int | None, typer.Option(help="Random starts of each probe, for standard errors [5].")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Confidence level of flags, with respect to the probe [0.95].")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random starts [42].")] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="trust|none",
            help="trust: calibrated evidence, and a check of which clients trained. none: the paper's evidence.",
        ),
    ] = "trust",
    evidence: options.EvidenceOption = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Client files contain only some tensors (an adapter); the global model has the rest.",
        ),
    ] = False,
    probe_engine: options.ProbeEngineOption = options.ProbeEngineName.local,
    address: options.AddressOption = None,
    signing_key: Annotated[
        Path | None,
        typer.Option(help="With --out: private key that signs the ledger (celm keys make)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting, as in probe.steps=100 or mean=[0.5]; repeatable.",
        ),
    ] = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Report what each client contributed, from saved models alone: no training, no data.

    Files may be safetensors, PyTorch (.pt, .pth, .bin, .ckpt, loaded without
    running code) or npz. A client is named after its file. Folders round-001,
    round-002, ... are rounds, each with a global.* beside its clients.

    [bold]Examples[/bold]

      celm audit --global g.safetensors --clients uploads/ --model cnn \\
        --input-shape 3,32,32 --classes 10 --out audit/
      celm audit --global g.pt --clients uploads/ --model my_package.nets:make \\
        --input-shape 1,28,28 --classes cat,dog
      celm audit --global vit/ --clients uploads/ --model vit/ --classes 10
      celm audit --global g.pt --clients uploads/ --model cnn \\
        --input-shape 3,32,32 --classes 10 --preset none
      celm audit --global g.pt --clients uploads/ --model cnn \\
        --input-shape 3,32,32 --classes 10 --evidence head
      celm audit --clients rounds/ --model cnn \\
        --input-shape 3,32,32 --classes 10 --out audit/
      celm audit --global g.pt --clients uploads/ --model vit_config/ \\
        --classes 10 --probe-engine ray --address auto

    [bold]Exit codes[/bold]

      0    all clients audited
      2    nothing audited: bad input, or the first bad client with --strict
      3    done, but clients were excluded, each with a reason
      130  interrupted
    """
    option_values: dict[str, Any] = {
        "num_starts": num_starts,
        "confidence": confidence,
        "seed": seed,
        "evidence": evidence,
        "partial": partial or None,
    }
    for assignment in settings or []:
        _apply_setting(option_values, assignment)
    option_values, warning = with_audit_preset(option_values, None if preset == "none" else preset)
    if warning:
        print_warning(warning)
    shape = _parse_shape(input_shape)
    key = _read_signing_key(signing_key, out)
    prober = options.ray_prober(probe_engine, address)
    from celm.auditing.audit import audit
    from celm.auditing.settings import parse_class_names
    from celm.core.probe import probe

    with (
        prober or nullcontext(),
        redirect_stdout(sys.stderr),  # the code of a model may print, which must not be mixed with the result
        probe_progress(quiet=format is Format.json) as update_progress,
    ):
        try:
            result = audit(
                global_model,
                clients,
                model=model,
                classes=parse_class_names(classes),
                input_shape=shape,
                out=out,
                preset=None,
                strict=strict,
                watch=update_progress,
                prober=prober or probe,
                **option_values,
            )
        except SystemExit as error:
            raise CelmError(f"the code of the model ended the audit: {format_exception(error)}") from error
        except KeyboardInterrupt:
            if out is not None:
                stderr_console.print("\nstopped; the same command continues the audit")
            raise
    if key is not None and result.folder is not None:
        from celm.auditing.ledger_signature import sign_ledger

        sign_ledger(result.folder, key)
    if format is Format.json:
        print_json({"audit": str(out.resolve()) if out else None, **result.document})
    else:
        _print_audit(result)
    if result.excluded:
        raise typer.Exit(_EXIT_SOME_EXCLUDED)


def _apply_setting(option_values: dict[str, Any], assignment: str) -> None:
    """Set `key=value` or `probe.key=value`; the value is parsed as TOML, or else taken as text."""
    path, equals, text = assignment.partition("=")
    setting = path.strip()
    if not equals or not setting:
        raise CelmError(f"'{assignment}' is not a setting", "write KEY=VALUE, as in probe.steps=100")
    value = parse_toml_value(text)
    table, dot, key = setting.partition(".")
    if not dot:
        option_values[table] = {"name": value} if table == "probe" else value
    elif table in ("probe", "options"):
        option_values.setdefault(table, {})[key] = value
    else:
        raise CelmError(f"unknown setting '{setting}'", "the tables are probe and options")


def _read_signing_key(path: Path | None, out: Path | None) -> SigningKey | None:
    """Read the key before the audit begins, so that a wrong path costs no time."""
    if path is None:
        return None
    from celm.records.signed.keys import SigningKey

    if out is None:
        raise CelmError("--signing-key needs --out: a ledger is only in a folder")
    return SigningKey.read(path)


def _parse_shape(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise CelmError(f"--input-shape: '{text}' is not a shape", "as in 3,32,32") from error


@contextmanager
def probe_progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, if that is a terminal: models probed and time left."""
    columns = (TextColumn("[bold]probing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=stderr_console, transient=True, disable=quiet or not stderr_console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_audit(audit: Audit) -> None:
    """Print scores, flags and notes on one screen."""
    from celm.cli.tables import audit_table
    from celm.report.client_summaries import few_starts_note, no_evidence_note

    terminal = stdout_console()
    terminal.print(audit_table(audit))
    for label, style, reasons in (
        ("free-rider", "red", audit.flags),
        ("excluded", "yellow", audit.excluded),
        ("note", "dim", audit.document["notes"]),
    ):
        for name, reason in islice(reasons.items(), _MAX_LISTED_CLIENTS):
            terminal.print(
                Text(f"{label}: {printable(name)}: {printable(reason)}", style=style), soft_wrap=True
            )
        if len(reasons) > _MAX_LISTED_CLIENTS:
            others = len(reasons) - _MAX_LISTED_CLIENTS
            terminal.print(Text(f"{label}: {others:,} more; --format json lists all", style=style))
    if ignored := audit.document["ignored"]:
        listed_files = ", ".join(map(printable, ignored[:_MAX_LISTED_FILES]))
        if len(ignored) > _MAX_LISTED_FILES:
            listed_files += f" and {len(ignored) - _MAX_LISTED_FILES} more"
        terminal.print(Text(f"ignored, not a checkpoint: {listed_files}", style="dim"), soft_wrap=True)
    for caveat in (
        no_evidence_note(audit.scores),
        few_starts_note(audit.document["settings"]["num_starts"]),
    ):
        if caveat:
            terminal.print(Text(f"note: {caveat}", style="yellow"), soft_wrap=True)
    if audit.document["settings"]["evidence"] == "head":
        terminal.print(
            "scores assume that clients started from the global model, last layer included", style="dim"
        )
    else:
        terminal.print("± is the standard error of the probe, not of data or training", style="dim")
    if audit.folder is None:
        terminal.print("for a report and a ledger: --out DIR", style="dim")
        return
    terminal.print(f"report: {escape(str(audit.folder / 'report.html'))}", soft_wrap=True)
    terminal.print(f"ledger SHA-256: {audit.ledger_digest}", soft_wrap=True)
