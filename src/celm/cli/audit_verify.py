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
from celm.cli.state_verify import ProofRequest, verify_state


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
    key: Annotated[
        Path | None,
        typer.Option(help="Public key of the consortium: also verify that it vouches for the signatures."),
    ] = None,
    proof: Annotated[
        tuple[str, int] | None,
        typer.Option(
            metavar="CLIENT ROUND", help="Write a proof of what the record has about a client in a round."
        ),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(metavar="ROUND", help="Write a proof that the record continues its head of this round."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --proof or --since: the file to write, by default proof.json.")
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
    Without --last, a changed or missing last line is not detected. If the
    record is signed, also verify that it gives each signed head.

    --proof and --since write a file that a member checks with the public key
    alone (celm verify-proof). It does not reveal other members' lines.

    Exit code 0: verified; 2: not verified, or there is no audit.

    [bold]Examples[/bold]

      celm audit-verify audit/
      celm audit-verify audit/ --last 9c1e...
      celm audit-verify audit/ --full
      celm audit-verify audit/ --full --model my_package.nets:make
      celm audit-verify /var/lib/celm/consortium --last 3f7a...
      celm audit-verify /var/lib/celm/consortium --key consortium.pub
      celm audit-verify /var/lib/celm/consortium --proof north 12 --since 7
    """
    from celm.records.federation_files import is_state_folder

    if is_state_folder(folder):
        if full or model is not None:
            raise CelmError("--full repeats an audit, but the rounds of a federation cannot be repeated")
        verify_state(folder, last, key, ProofRequest(proof, since, out), format)
        return
    if proof is not None or since is not None or out is not None:
        raise CelmError(f"--proof, --since and --out need a state folder, which {folder} is not")
    if last is not None and not (folder / "ledger.json").is_file():
        raise CelmError(
            f"{folder} is neither a state folder, which has a rounds.jsonl, nor an audit, which has a ledger.json"
        )
    if model is not None and not full:
        raise CelmError("--model needs --full", "add --full to repeat the audit with this model")
    _verify_audit(folder, full, model, last, key, format)


def _verify_audit(
    folder: Path, full: bool, model: str | None, last: str | None, key: Path | None, format: Format
) -> None:
    from celm.auditing.checkpoint_reader import file_sha256
    from celm.auditing.ledger import LEDGER_FILE, read_ledger
    from celm.auditing.ledger_signature import verify_ledger_signature
    from celm.auditing.verify import count_files, verify_audit

    files = count_files(read_ledger(folder))
    with probe_progress(quiet=format is Format.json) as update_progress:
        problems = verify_audit(folder, full, update_progress, model, last)
    signer, signature_problems = verify_ledger_signature(folder, key)
    problems += signature_problems
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
                "signed_by": signer,
            }
        )
    elif not problems:
        repeated_note = "; the audit was repeated, and its numbers agree" if full else ""
        ledger_note = (
            "only --last DIGEST verifies the ledger" if last is None else "the ledger is the given one"
        )
        if signer is not None:
            ledger_note = f"the ledger is signed by the {'given ' if key else ''}key {signer[:16]}"
        stdout_console().print(
            f"the report belongs to its files: {files}{repeated_note}; {ledger_note}; ledger SHA-256 {ledger_digest}",
            soft_wrap=True,
        )
    for problem in problems:
        stderr_console.print(Text.assemble(("error: ", "bold red"), printable(problem)), soft_wrap=True)
    if problems:
        raise typer.Exit(2)
