"""`celm verify-proof`: what a member checks with the consortium's public key alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.output import Format, print_json, printable, stdout_console

if TYPE_CHECKING:
    from celm.records.signed.proofs import VerifiedProof


def verify_proof_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="Proof by celm audit-verify, or the heads that a member kept (heads.jsonl, newest.json)."
        ),
    ],
    key: Annotated[Path, typer.Option(help="Public key of the consortium.")],
    head: Annotated[
        Path | None,
        typer.Option(help="Heads that you or another member kept: they must be of the same record."),
    ] = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Check what a server says about the record of a federation, without the record.

    A proof has what the record says about one client in one round, or that the
    record continues an earlier head, under the newest head that the consortium
    signed. With --head, that head must also continue the heads in a file: then
    nothing up to the round of those heads was changed.

    Exit code 0: verified; 2: not verified.

    [bold]Examples[/bold]

      celm verify-proof proof.json --key consortium.pub
      celm verify-proof proof.json --key consortium.pub --head heads/heads.jsonl
      celm verify-proof heads/heads.jsonl --key consortium.pub --head from-south.jsonl
    """
    try:
        document, lines = _verify(file, key, head)
    except CelmError as error:
        if format is Format.json:
            print_json({"proof": str(file.resolve()), "verified": False, "problems": [str(error)]})
        raise
    if format is Format.json:
        print_json({"proof": str(file.resolve()), "verified": True, "problems": [], **document})
        return
    for line in lines:
        stdout_console().print(Text(printable(line)), soft_wrap=True)


def _verify(file: Path, key_path: Path, head_path: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return the result as JSON and as lines of text."""
    from celm.records.signed.kept_heads import compare_heads, compare_with_kept, read_kept_heads
    from celm.records.signed.keys import PublicKey
    from celm.records.signed.proofs import read_proof, verify_proof

    key = PublicKey.read(key_path)
    kept = None if head_path is None else read_kept_heads(head_path, key)
    if file.suffix == ".jsonl":
        heads = read_kept_heads(file, key)
        rounds = [] if kept is None else compare_heads(heads, kept)
        document: dict[str, Any] = {"round": heads[-1].round, "heads": len(heads), "key": key.id}
        document["same_as_kept"] = rounds
        lines = [f"{len(heads)} heads are signed, the last of round {heads[-1].round}"]
        return document, [*lines, *(f"round {number}: both files have the same head" for number in rounds)]
    proof = verify_proof(read_proof(file), key, str(file))
    document, lines = _describe(proof)
    if kept is not None:
        rounds = [head.round for head in compare_with_kept(proof, kept, str(head_path))]
        document["continues"] = sorted({*document["continues"], *rounds})
        lines += [
            f"nothing up to round {number} was changed since its head was kept" for number in rounds[-1:]
        ]
    return document, lines


def _describe(proof: VerifiedProof) -> tuple[dict[str, Any], list[str]]:
    head = proof.head
    document: dict[str, Any] = {
        "round": head.round,
        "earlier_rounds": head.earlier_rounds,
        "last": head.line,
        "key": proof.key.id,
        "continues": [old.round for old in proof.earlier_heads],
    }
    lines = [
        f"the head of round {head.round} is signed by the key {proof.key.id}; last line SHA-256 {head.line}"
    ]
    if head.earlier_rounds:
        lines.append(f"rounds 1 to {head.earlier_rounds} were recorded before the record was signed")
    lines += [f"it continues the signed head of round {old.round}" for old in proof.earlier_heads]
    if proof.leaves:
        of_round, of_client = proof.leaves
        document |= {"client": of_client["client"], "client_round": of_client["round"]}
        document |= {"leaf": of_client, "round_leaf": of_round}
        lines.append(f"the record has about {of_client['client']} in round {of_client['round']}:")
        hidden = ("leaf", "round", "client", "salt")
        lines += [f"  {name}: {_short(value)}" for name, value in of_client.items() if name not in hidden]
    return document, lines


def _short(value: object) -> str:
    from celm.base.files import dump_json

    return value if isinstance(value, str) else dump_json(value)
