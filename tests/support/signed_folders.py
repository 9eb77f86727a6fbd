"""Federations with a signing key, their members that keep heads, and a server that rewrites its record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from celm.flower import ContributionResult
from celm.flower.witness import witness
from celm.records.hash_chain import ChainFile
from celm.records.signed.head_log import HeadLog
from celm.records.signed.keys import SigningKey
from support.small_grid import Client, SmallGrid
from support.state_folders import clients, lines_of, play, sha256

Edit = Callable[[list[dict[str, Any]]], None]


def make_key(folder: Path, name: str = "key") -> Path:
    """Write a signing key and NAME.pub beside it; return the path of the private key."""
    SigningKey.make().write(folder / name)
    return folder / name


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def watching(client: Client, folder: Path, key: Path, **settings: Any) -> Client:
    """Return a client that keeps the heads in `folder`; if it refuses one, it does not reply."""
    mod = witness(folder, public(key), **settings)
    context = Context(1, 1, {}, RecordDict(), {})

    def answer(message: Message) -> Message | list[Message] | None:
        return mod(message, context, lambda message, context: client(message))  # type: ignore[arg-type, return-value]

    return answer


def play_signed(
    folder: Path, rounds: int, key: Path, watchers: dict[str, Client] | None = None, **settings: Any
) -> ContributionResult:
    """Play a signed federation; `watchers` replace clients of the same names."""
    grid = SmallGrid({**clients(), **(watchers or {})})
    return play(folder, rounds, grid, signing_key=key, **settings)


def rewrite(folder: Path, edit: Edit) -> None:
    """Edit the lines of a record and chain them and the evaluations anew, as the owner of the folder can."""
    rounds, evaluations = (lines_of(folder / name) for name in ("rounds.jsonl", "evaluations.jsonl"))
    originals = {id(line): _digest(line) for line in (*rounds, *evaluations)}
    edit(rounds)
    renamed: dict[str, str] = {}
    for line in sorted((*rounds, *evaluations), key=lambda line: (line["round"], "start" not in line)):
        line["previous"] = renamed.get(line["previous"], line["previous"])
        line["heads"] = {name: renamed.get(digest, digest) for name, digest in line["heads"].items()}
        renamed[originals[id(line)]] = _digest(line)
    for name, lines in (("rounds.jsonl", rounds), ("evaluations.jsonl", evaluations)):
        (folder / name).write_text("".join(_text(line) + "\n" for line in lines))


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False)


def _digest(line: dict[str, Any]) -> str:
    return sha256(_text(line))


def sign_every_round(folder: Path, key: Path) -> None:
    """Sign a record anew, as if each round had been signed in its time."""
    (folder / "heads.jsonl").unlink()
    path = folder / "rounds.jsonl"
    rounds = ChainFile.parse(path, path.read_bytes())
    log = HeadLog.read(folder, ChainFile.parse(path, None))
    for record, digest in zip(rounds.records, rounds.digests, strict=True):
        log.append_round(record, digest)
        log.sign(SigningKey.read(key))


def rewrite_history(lines: list[dict[str, Any]]) -> None:
    lines[1]["earned"]["a"], lines[1]["earned"]["b"] = 1.0, 0.0


def drop_member(lines: list[dict[str, Any]]) -> None:
    for value in lines[1].values():
        if isinstance(value, dict):
            value.pop("b", None)
    lines[1]["asked"].remove("b")


def swap_members(lines: list[dict[str, Any]]) -> None:
    for key, value in lines[1].items():  # except the nodes' keys, which names.json would contradict
        if isinstance(value, dict) and "a" in value and "b" in value and key != "keys":
            value["a"], value["b"] = value["b"], value["a"]


def change_salt(lines: list[dict[str, Any]]) -> None:
    lines[2]["salt"] = "00" * 32


REWRITES: dict[str, Edit] = {
    "rewrites history": rewrite_history,
    "drops a member's line": drop_member,
    "swaps two members": swap_members,
}
