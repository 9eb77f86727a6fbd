"""A record whose lines are chained by digests, and the state folder of a consortium that holds one.

    rounds.jsonl    line n holds `round`: n, `previous`: SHA-256 of line n - 1, or zeros in the first,
                    and `settings`: SHA-256 of what settings.json says, as one line

A digest is one of bytes, so that `tail -n 1 rounds.jsonl | tr -d '\\n' | sha256sum` gives that of the last line. The
chain shows changes up to a line whose digest somebody kept; without one, a last line that was changed or dropped
cannot be told from one that was never written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import dump_json, explained
from celm.federation.folder import read_json, read_lines

FIRST = "0" * 64
RECORD, SETTINGS = "rounds.jsonl", "settings.json"
ONLY_IN_A_STATE = (RECORD, "names.json", "checkpoints")


def digest_of(value: Mapping[str, Any]) -> str:
    """Of a line, or of settings, as they are written."""
    return sha256(dump_json(value).encode())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def last_digest(records: Sequence[Mapping[str, Any]]) -> str:
    return digest_of(records[-1]) if records else FIRST


def check_chain(records: Iterable[Mapping[str, Any]]) -> None:
    """An error that says where lines do not follow from one another."""
    lines = list(records)
    follow(lines, [digest_of(line) for line in lines])


def follow(records: Sequence[Mapping[str, Any]], digests: Sequence[str]) -> None:
    for number, (record, previous) in enumerate(zip(records, [FIRST, *digests], strict=False), start=1):
        if record.get("previous") == previous and record.get("round") == number:
            continue
        if number == 1:
            raise CelmError("the record was changed: its first line is not that of a first round")
        raise CelmError(
            f"the record was changed at line {number - 1} or {number}: "
            "one of them is not as it was written, or lines between them are missing or too many"
        )


def verify(path: str | Path, last: str | None = None) -> list[dict[str, Any]]:
    """The rounds in a `rounds.jsonl` whose chain is whole; with `last`, up to the line that has this digest.

    A line without its end, from a kill while it was written, does not count.
    """
    return read_chain(Path(path), last)[0]


def read_chain(path: Path, last: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """The rounds, and the digest of the last line."""
    wanted = None if last is None else checked_digest(last)
    if not path.exists():
        raise CelmError(f"there is no record: {path} does not exist")
    records = read_lines(path)
    if not records:
        raise CelmError(f"there is no record: {path} holds no finished line")
    with explained(path, "read"):
        digests = [sha256(line) for line in path.read_bytes().split(b"\n")[: len(records)]]
    follow(records, digests)
    if wanted is not None and wanted != digests[-1]:
        if wanted in digests:
            known = digests.index(wanted) + 1
            raise CelmError(
                f"{path} goes on after the digest given: it is that of line {known}, and {len(digests) - known} follow",
                "lines up to that one are as they were; for the rest give a later digest",
            )
        raise CelmError(
            f"the record was changed: no line of {path} has the digest {wanted}",
            f"the last of its {len(digests)} lines has {digests[-1]}",
        )
    return records, digests[-1]


def checked_digest(text: str) -> str:
    """As `sha256sum` prints it, or parts of that line.

    >>> checked_digest("AB" * 32 + "  -")[:6]
    'ababab'
    """
    found = re.fullmatch(r"([0-9a-f]{64})(\s+\*?-)?", text.strip().lower())
    if found is None:
        raise CelmError(f"'{text}' is not a SHA-256", "64 digits from 0 to f")
    return found[1]


@dataclass(frozen=True)
class Kept:
    """What a state folder says, its chain verified."""

    records: list[dict[str, Any]]
    settings: dict[str, Any] | None
    """Those that every line names; None where the file was not handed on with the record."""
    digest: str
    """Of the last line."""


def is_state(folder: Path) -> bool:
    """Whether this is what `celm.flower` writes, and neither a run nor an audit."""
    if (folder / "settings.toml").exists() or (folder / "ledger.json").exists():
        return False
    return any((folder / name).exists() for name in ONLY_IN_A_STATE)


def read_state(folder: Path, last: str | None = None) -> Kept:
    records, digest = read_chain(folder / RECORD, last)
    place = folder / SETTINGS
    settings = read_json(place) if place.exists() else None
    if settings is not None:
        expected = settings_digest(settings, place)
        if any(line.get("settings") != expected for line in records):
            raise CelmError(f"{place} was changed: it is not the one that the record names")
    return Kept(records, settings, digest)


def settings_digest(settings: Mapping[str, Any], place: Path) -> str:
    try:
        return digest_of(settings)
    except ValueError as error:  # NaN, or half a character
        raise CelmError(f"{place} is damaged: it holds what JSON does not") from error
