"""`celm audit-verify`: whether a report still matches its files, or a state folder its hash chain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.audit import probe_progress
from celm.cli.output import Format, print_json, printable, stderr_console, stdout_console


def audit_verify_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="AUDIT_OR_STATE_DIR",
            help="Folder of a finished audit, or the state folder of a Flower strategy.",
        ),
    ],
    full: Annotated[
        bool, typer.Option("--full", help="Also repeat the audit from the files and compare its numbers.")
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
            metavar="DIGEST",
            help="SHA-256 that was given to the members: of an audit's ledger, or of a state folder's last line.",
        ),
    ] = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Verify that an audit's report belongs to its files, or name the file that changed.

    With --last, also verify that the ledger is the one whose SHA-256 the audit
    printed. Without --last, a ledger that was rewritten together with the
    report is not detected.

    In the state folder of a Flower strategy, verify the hash chain of the
    rounds, evaluations and failures, the settings with their amendments,
    and that names.json gives no key of one client to another. With --last,
    also verify that the last line is the one whose digest was given out.
    Without --last, a changed or missing last line is not detected.

    Exit code 0: verified; 2: not verified, or there is no audit.

    [bold]Examples[/bold]

      celm audit-verify audit/
      celm audit-verify audit/ --last 9c1e...
      celm audit-verify audit/ --full
      celm audit-verify audit/ --full --model my_package.nets:make
      celm audit-verify /var/lib/celm/consortium --last 3f7a...
    """
    from celm.records.federation_files import is_state_folder

    if is_state_folder(folder):
        if full or model is not None:
            raise CelmError("--full repeats an audit, but the rounds of a federation cannot be repeated")
        _verify_state(folder, last, format)
        return
    if last is not None and not (folder / "ledger.json").is_file():
        raise CelmError(
            f"{folder} is neither a state folder, which has a rounds.jsonl, nor an audit, which has a ledger.json"
        )
    if model is not None and not full:
        raise CelmError("--model needs --full", "add --full to repeat the audit with this model")
    _verify_audit(folder, full, model, last, format)


def _verify_audit(folder: Path, full: bool, model: str | None, last: str | None, format: Format) -> None:
    from celm.auditing.checkpoint_reader import file_sha256
    from celm.auditing.ledger import LEDGER_FILE, read_ledger
    from celm.auditing.verify import count_files, verify_audit

    files = count_files(read_ledger(folder))
    with probe_progress(quiet=format is Format.json) as update_progress:
        problems = verify_audit(folder, full, update_progress, model, last)
    ledger_digest = file_sha256(folder / LEDGER_FILE)
    if format is Format.json:
        print_json(
            {
                "audit": str(folder.resolve()),
                "verified": not problems,
                "problems": problems,
                "files_checked": files.checked,
                "files_without_digest": files.without_digest,
                "ledger": ledger_digest,
            }
        )
    elif not problems:
        repeated_note = "; the audit was repeated, and its numbers agree" if full else ""
        ledger_note = (
            "only --last DIGEST verifies the ledger" if last is None else "the ledger is the given one"
        )
        stdout_console().print(
            f"the report belongs to its files: {files}{repeated_note}; {ledger_note}; ledger SHA-256 {ledger_digest}",
            soft_wrap=True,
        )
    for problem in problems:
        stderr_console.print(Text.assemble(("error: ", "bold red"), printable(problem)), soft_wrap=True)
    if problems:
        raise typer.Exit(2)


def _verify_state(folder: Path, last: str | None, format: Format) -> None:
    from celm.records.federation_files import read_state_folder

    try:
        state = read_state_folder(folder, last)
    except CelmError as error:
        if format is Format.json:
            print_json({"state": str(folder.resolve()), "verified": False, "problems": [str(error)]})
        raise
    rounds = len(state.records)
    if format is Format.json:
        document = {"state": str(folder.resolve()), "verified": True, "problems": []}
        document |= {"rounds": rounds, "last": state.digest}
        print_json(document if state.newest == state.digest else document | {"newest": state.newest})
        return
    if last is None:
        message = f"the hash chain of {rounds} rounds is intact; only --last DIGEST verifies the last line"
    else:
        message = f"the hash chain of {rounds} rounds is intact and ends with the given digest"
    if state.uncovered:
        message += f"; it does not cover {state.uncovered} later lines of evaluations and failures"
    if state.newest != state.digest:
        message += f"; newest line, which covers all files, SHA-256 {state.newest}"
    stdout_console().print(f"{message}; last line SHA-256 {state.digest}", soft_wrap=True)
