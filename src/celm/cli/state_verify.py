"""`celm audit-verify` of a federation's state folder: its chain, its signed heads, and proofs for members."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from celm.base.errors import CelmError
from celm.cli.output import Format, print_json, stderr_console, stdout_console

if TYPE_CHECKING:
    from celm.records.federation_files import StateRecord
    from celm.records.signed.head_log import HeadLog, SignedRecord

DEFAULT_PROOF_FILE = "proof.json"


@dataclass(frozen=True)
class ProofRequest:
    """The proof to write, if any."""

    client_round: tuple[str, int] | None = None
    since: int | None = None
    out: Path | None = None

    @property
    def is_empty(self) -> bool:
        return self.client_round is None and self.since is None


def verify_state(
    folder: Path, last: str | None, key: Path | None, proof: ProofRequest, format: Format
) -> None:
    """Verify a state folder, print the result and write the proof."""
    from celm.records.federation_files import read_state_folder

    if proof.out is not None and proof.is_empty:
        raise CelmError("--out needs --proof or --since")
    try:
        signed = _read_signed(folder, key, proof)
        state = read_state_folder(folder, last)
        written = None if signed is None else _write_proof(signed, proof)
    except CelmError as error:
        if format is Format.json:
            print_json({"state": str(folder.resolve()), "verified": False, "problems": [str(error)]})
        raise
    heads = None if signed is None else signed.heads
    if format is Format.json:
        document = {"state": str(folder.resolve()), "verified": True, "problems": []}
        document |= {"rounds": len(state.records), "last": state.digest}
        if state.newest != state.digest:
            document["newest"] = state.newest
        if heads is not None:
            document |= _describe_heads(heads, state)
        print_json(document if written is None else document | {"proof": str(written)})
        return
    stdout_console().print(Text(_chain_text(state, last)), soft_wrap=True)
    if heads is not None:
        stdout_console().print(Text(_heads_text(heads, state, key)), soft_wrap=True)
    if written is not None:
        stderr_console.print(Text(f"wrote {written}"), soft_wrap=True)


def _read_signed(folder: Path, key: Path | None, proof: ProofRequest) -> SignedRecord | None:
    """Return the record and its signed heads, checked against each other; None if the record is not signed."""
    from celm.records.signed.head_log import HEADS_FILE, read_signed_record
    from celm.records.signed.keys import PublicKey
    from celm.records.signed.trust import vouched_key

    if not (folder / HEADS_FILE).exists():
        if key is not None or not proof.is_empty:
            raise CelmError(
                f"the record is not signed: {folder} has no {HEADS_FILE}", "set signing_key of the strategy"
            )
        return None
    signed = read_signed_record(folder)
    if key is not None:
        vouched_key(signed.heads.events, PublicKey.read(key), str(signed.heads.path))
    return signed


def _write_proof(signed: SignedRecord, proof: ProofRequest) -> Path | None:
    from celm.records.signed.proofs import write_proof

    if proof.is_empty:
        return None
    path = proof.out or Path(DEFAULT_PROOF_FILE)
    write_proof(path, signed.heads.make_proof(signed.rounds, proof.client_round, proof.since))
    return path


def _chain_text(state: StateRecord, last: str | None) -> str:
    rounds = len(state.records)
    if last is None:
        message = f"the hash chain of {rounds} rounds is intact; only --last DIGEST verifies the last line"
    else:
        message = f"the hash chain of {rounds} rounds is intact and ends with the given digest"
    if state.uncovered:
        message += f"; it does not cover {state.uncovered} later lines of evaluations and failures"
    if state.newest != state.digest:
        message += f"; newest line, which covers all files, SHA-256 {state.newest}"
    return f"{message}; last line SHA-256 {state.digest}"


def _describe_heads(heads: HeadLog, state: StateRecord) -> dict[str, Any]:
    last = heads.last_head
    if last is None:
        return {}
    return {
        "signed": {
            "round": last.round,
            "heads": len(heads.heads),
            "earlier_rounds": last.earlier_rounds,
            "key": heads.events[-1].key.id,
            "witnesses": _witnessed_rounds(heads, state),
        }
    }


def _witnessed_rounds(heads: HeadLog, state: StateRecord) -> dict[str, int]:
    """Return client to the round of the newest head that it returned."""
    rounds = {head.digest: head.round for head in heads.heads}
    witnessed: dict[str, int] = {}
    for record in state.records:
        for client, digest in record.get("witnesses", {}).items():
            if digest in rounds:
                witnessed[client] = max(rounds[digest], witnessed.get(client, 0))
    return witnessed


def _heads_text(heads: HeadLog, state: StateRecord, key: Path | None) -> str:
    last = heads.last_head
    if last is None:
        return "no round is signed yet"
    signer = heads.events[-1].key.id
    text = (
        f"the record gives all {len(heads.heads)} signed heads, the last of round {last.round}, key {signer}"
    )
    text += "" if key else "; only --key KEY verifies whose key it is"
    if last.earlier_rounds:
        text += f"; rounds 1 to {last.earlier_rounds} were recorded before it was signed"
    witnesses = _witnessed_rounds(heads, state)
    if witnesses:
        listed = ", ".join(f"{client} (round {number})" for client, number in witnesses.items())
        text += f"; heads returned by {listed}"
    return text
