"""A record whose lines are chained by digests.

    rounds.jsonl    line n has `round`: n, and `previous`: SHA-256 of line n - 1, or zeros in line 1

A digest is taken over bytes, so `tail -n 1 rounds.jsonl | tr -d '\\n' | sha256sum` prints the digest of the last line.
The chain reveals changes up to a line whose digest was saved elsewhere. Without such a digest, a last line that was
changed or removed cannot be detected. `celm.records.federation_chain` chains several files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import dump_json, os_errors_as_celm_error
from celm.base.json_files import parse_jsonl

GENESIS = "0" * 64


@dataclass(frozen=True)
class ChainFile:
    """The complete lines of a file, with their digests. An incomplete last line does not count."""

    path: Path
    records: list[dict[str, Any]]
    digests: list[str]
    exists: bool = True

    @classmethod
    def parse(cls, path: Path, content: bytes | None) -> ChainFile:
        """Return the lines of `content`, which was read from `path`; None if there is no file."""
        records = parse_jsonl(content or b"", path)
        digests = [bytes_sha256(line) for line in (content or b"").split(b"\n")[: len(records)]]
        return cls(path, records, digests, content is not None)

    @cached_property
    def line_numbers(self) -> dict[str, int]:
        """Digest to the number of its line; 0 for the digest before the first line."""
        return {GENESIS: 0} | {digest: number for number, digest in enumerate(self.digests, start=1)}

    @property
    def head(self) -> str:
        """The digest of the last line."""
        return self.digests[-1] if self.digests else GENESIS

    def require_lines(self) -> None:
        if not self.exists:
            raise CelmError(f"there is no record: {self.path} does not exist")
        if not self.records:
            raise CelmError(f"there is no record: {self.path} has no complete line")

    def check_ends_with(self, digest: str) -> None:
        """Raise CelmError unless the last line has this digest."""
        if digest == self.head:
            return
        if line_number := self.line_numbers.get(digest):
            raise CelmError(
                f"{self.path} continues after the given digest: "
                f"it is the digest of line {line_number}, and {len(self.digests) - line_number} follow",
                f"lines 1 to {line_number} are unchanged; to check the others, give a later digest",
            )
        raise CelmError(
            f"the record was changed: no line of {self.path} has the digest {digest}",
            f"the last of its {len(self.digests)} lines has the digest {self.head}",
        )


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a line, or of settings, as one line of JSON."""
    return bytes_sha256(dump_json(value).encode())


def last_line_digest(records: Sequence[Mapping[str, Any]]) -> str:
    return json_digest(records[-1]) if records else GENESIS


def check_chain(records: Iterable[Mapping[str, Any]]) -> None:
    """Raise CelmError, which names the broken lines, unless the chain is intact."""
    lines = list(records)
    check_links(lines, [json_digest(line) for line in lines])


def check_links(
    records: Sequence[Mapping[str, Any]], digests: Sequence[str], path: Path | None = None
) -> None:
    """Raise CelmError, which names the broken lines, unless the lines are rounds 1, 2, ... with an intact chain."""
    name = "the record" if path is None else str(path)
    for number, (record, previous) in enumerate(zip(records, [GENESIS, *digests], strict=False), start=1):
        if record.get("previous") == previous and record.get("round") == number:
            continue
        if number == 1:
            raise CelmError(f"{name} was changed: its first line is not the line of a first round")
        raise CelmError(
            f"{name} was changed at line {number - 1} or {number}: "
            "one of them was edited, or lines between them were removed or added"
        )


def verify_chain(path: str | Path, last: str | None = None) -> list[dict[str, Any]]:
    """Return the rounds of a `rounds.jsonl` if its chain is intact.

    With `last`, the last line must have this digest. An incomplete last line, from a kill during the write, does not
    count. Evaluations and failures are not checked here: see `celm.records.federation_files.read_state_folder`.
    """
    expected_digest = None if last is None else parse_digest(last)
    path = Path(path)
    with os_errors_as_celm_error(path, "read"):
        chain_file = ChainFile.parse(path, path.read_bytes() if path.exists() else None)
    chain_file.require_lines()
    check_links(chain_file.records, chain_file.digests, path)
    if expected_digest is not None:
        chain_file.check_ends_with(expected_digest)
    return chain_file.records


def parse_digest(text: str) -> str:
    """Return a SHA-256 in lower case, also from a line that `sha256sum` printed.

    >>> parse_digest("AB" * 32 + "  -")[:6]
    'ababab'
    """
    match = re.fullmatch(r"([0-9a-f]{64})(\s+\*?-)?", text.strip().lower())
    if match is None:
        raise CelmError(f"'{text}' is not a SHA-256", "give 64 hexadecimal digits")
    return match[1]
