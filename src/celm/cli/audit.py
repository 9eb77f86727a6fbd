"""`celm audit` and `celm audit-verify`: a contribution report from saved checkpoints, and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.output import Format, console, notes, print_json, printable
from celm.federation.experiment import value_of

if TYPE_CHECKING:
    from celm.auditing.result import Audit

SOME_EXCLUDED = 3
"""Exit code of an audit that is done, but not of everybody."""


def command(
    clients: Annotated[
        list[Path], typer.Option(help="A folder of client models, or a file; can be given several times.")
    ],
    model: Annotated[
        str,
        typer.Option(help="A model's name, pkg.module:factory, or a folder with a Hugging Face config.json."),
    ],
    classes: Annotated[str, typer.Option(help="Number of classes, or their names, separated by commas.")],
    start: Annotated[
        Path | None,
        typer.Option(
            "--global",
            help="The model that the clients started from; not needed where every round's folder has a global.*",
        ),
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(help="Shape of one input, as in 3,32,32; a Hugging Face folder may say it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report and the ledger; a stopped audit goes on there.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first client that cannot be audited.")
    ] = False,
    starts: Annotated[
        int | None, typer.Option(help="Random starts of each probe, for standard errors [5].")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="At which flags hold, of the probe [0.95].")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the starts [42].")] = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="Client files hold a part (an adapter); the rest is the global model's."
        ),
    ] = False,
    probe_engine: options.ProbeEngine = options.ProbeEngineName.local,
    address: options.Address = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in probe.steps=100 or mean=[0.5]."),
    ] = None,
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """Say who contributed what, from saved models alone: no training, no data.

    Files may be safetensors, PyTorch (.pt, .pth, .bin, .ckpt, loaded without running code) or npz. A client is named by
    its file; folders round-001, round-002, ... are rounds, each with a global.* beside its clients.

    [bold]Examples[/bold]

      celm audit --global g.safetensors --clients uploads/ --model cnn --input-shape 3,32,32 --classes 10 --out audit/

      celm audit --global g.pt --clients uploads/ --model my_package.nets:make --input-shape 1,28,28 --classes cat,dog

      celm audit --global vit/ --clients uploads/ --model vit/ --classes 10

      celm audit --clients rounds/ --model cnn --input-shape 3,32,32 --classes 10 --out audit/

      celm audit --global g.pt --clients uploads/ --model vit_config/ --classes 10 --probe-engine ray --address auto

    [bold]Exit codes[/bold]

      0 all clients audited; 3 done, but some clients were left out (each with a reason); 2 nothing audited: bad input,
      or the first bad client with --strict; 130 interrupted.
    """
    given: dict[str, Any] = {
        "starts": starts,
        "confidence": confidence,
        "seed": seed,
        "partial": partial or None,
    }
    for assignment in settings or []:
        assign(given, assignment)
    shape = numbers(input_shape)
    prober = options.ray_prober(probe_engine, address)
    from celm.auditing.audit import audit
    from celm.auditing.settings import class_names
    from celm.method.probe import probe

    with prober or nullcontext(), progress(quiet=format is Format.json) as watch:
        try:
            found = audit(
                start,
                clients,
                model=model,
                classes=class_names(classes),
                input_shape=shape,
                out=out,
                strict=strict,
                watch=watch,
                prober=prober or probe,
                **given,
            )
        except KeyboardInterrupt:
            if out is not None:
                notes.print("\nstopped; the same command goes on with what is missing")
            raise
    if format is Format.json:
        print_json({"audit": str(out.resolve()) if out else None, **found.document})
    else:
        show(found)
    if found.excluded:
        raise typer.Exit(SOME_EXCLUDED)


def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="AUDIT_OR_STATE_DIR",
            help="Folder of a finished audit, or the state of a Flower strategy.",
        ),
    ],
    full: Annotated[
        bool, typer.Option("--full", help="Repeat the audit from the files, too, and compare its numbers.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="With --full: the audit's own model, to confirm that pkg.module:factory may be imported."
        ),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="Of a state: the SHA-256 of the last line, as members were given it."
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """Confirm that an audit's report belongs to its files, or say which file changed.

    In the state folder of a Flower strategy, confirm that the lines of the record follow from one another, and with
    --last that they end as they did when that digest was given out: without it, a changed or missing last line is not
    found.

    Exit code 0: it does; 2: it does not, or there is no audit.

    [bold]Examples[/bold]

      celm audit-verify audit/

      celm audit-verify audit/ --full

      celm audit-verify audit/ --full --model my_package.nets:make

      celm audit-verify /var/lib/celm/consortium --last 3f7a...
    """
    from celm.federation.chain import is_state

    if is_state(folder):
        if full or model is not None:
            raise CelmError("--full repeats an audit; the rounds of a federation cannot be repeated")
        verify_state(folder, last, format)
        return
    if last is not None:
        raise CelmError(
            f"{folder} is not the state of a Flower strategy: it has no rounds.jsonl", "leave --last to those"
        )
    from celm.auditing.ledger import LEDGER, read_ledger
    from celm.auditing.reading import fingerprint
    from celm.auditing.verifying import verify as check

    if model is not None and not full:
        raise CelmError("--model says which model to repeat the audit with", "add --full")
    files = len(read_ledger(folder)["files"])
    with progress(quiet=format is Format.json) as watch:
        problems = check(folder, full, watch, model)
    seal = fingerprint(folder / LEDGER)
    if format is Format.json:
        print_json(
            {"audit": str(folder.resolve()), "verified": not problems, "problems": problems, "ledger": seal}
        )
    elif not problems:
        again = "; the audit was repeated, and its numbers agree" if full else ""
        console().print(
            f"the report belongs to its {files} files{again}; ledger SHA-256 {seal}", soft_wrap=True
        )
    for problem in problems:
        notes.print(Text.assemble(("error: ", "bold red"), printable(problem)), soft_wrap=True)
    if problems:
        raise typer.Exit(2)


def verify_state(folder: Path, last: str | None, format: Format) -> None:
    from celm.federation.chain import read_state

    try:
        kept = read_state(folder, last)
    except CelmError as error:
        if format is Format.json:
            print_json({"state": str(folder.resolve()), "verified": False, "problems": [str(error)]})
        raise
    rounds = len(kept.records)
    if format is Format.json:
        found = {"state": str(folder.resolve()), "verified": True, "problems": []}
        print_json(found | {"rounds": rounds, "last": kept.digest})
        return
    if last is None:
        unknown = "whether the last is as it was, only its digest can tell"
        told = f"up to round {rounds} every line follows from the one before; {unknown}"
    else:
        told = f"up to round {rounds} the record is as it was when the digest was given out"
    console().print(f"{told}; last line SHA-256 {kept.digest}", soft_wrap=True)


def assign(given: dict[str, Any], assignment: str) -> None:
    """Put `key=value` or `probe.key=value` among the settings; the value is read as TOML, else as text."""
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise CelmError(f"'{assignment}' is not a setting", "write KEY=VALUE, as in probe.steps=100")
    value = value_of(text)
    table, dot, key = path.strip().partition(".")
    if not dot:
        given[table] = {"name": value} if table == "probe" else value
    elif table in ("probe", "options"):
        given.setdefault(table, {})[key] = value
    else:
        raise CelmError(f"unknown setting '{path.strip()}'", "only probe.* and options.* have parts")


def numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise CelmError(f"--input-shape: '{text}' is not a shape", "as in 3,32,32") from error


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Models probed of all, and the time left; on stderr, and only where somebody watches."""
    columns = (TextColumn("[bold]probing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True, disable=quiet or not notes.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(found: Audit) -> None:
    """The answer on one screen."""
    from celm.cli.tables import audit_table
    from celm.report.sentences import few_starts

    out = console()
    out.print(audit_table(found))
    for name, reason in found.flags.items():
        out.print(Text(f"free-rider: {printable(name)}: {printable(reason)}", style="red"), soft_wrap=True)
    for name, reason in found.excluded.items():
        out.print(Text(f"excluded: {printable(name)}: {printable(reason)}", style="yellow"), soft_wrap=True)
    for name, remark in found.document["notes"].items():
        out.print(Text(f"note: {printable(name)}: {printable(remark)}", style="dim"), soft_wrap=True)
    if ignored := found.document["ignored"]:
        shown = ", ".join(map(printable, ignored[:5])) + (
            f" and {len(ignored) - 5} more" if len(ignored) > 5 else ""
        )
        out.print(Text(f"not taken for checkpoints: {shown}", style="dim"), soft_wrap=True)
    if caveat := few_starts(found.document["settings"]["starts"]):
        out.print(Text(f"note: {caveat}", style="yellow"), soft_wrap=True)
    out.print("± is the standard error of the probe, not of data or training", style="dim")
    if found.folder is None:
        out.print("for a report and a ledger: --out DIR", style="dim")
        return
    out.print(f"report: {escape(str(found.folder / 'report.html'))}", soft_wrap=True)
    out.print(f"ledger SHA-256: {found.seal}", soft_wrap=True)
