"""The chain over the three files of a federation's record: rounds, evaluations and failures.

previous    in each line: SHA-256 of the line before in the same file, or zeros
heads       in each line: SHA-256 of the last line of the other two files when the line was written

The digest of a line therefore covers all lines that were written before it, in all files. An older celm wrote
evaluations and failures without these keys. Such lines come first in their file and are not protected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.records.hash_chain import GENESIS, ChainFile, check_links

ROUNDS, EVALUATIONS, FAILURES = "rounds.jsonl", "evaluations.jsonl", "failures.jsonl"
CHAINED_FILES = (ROUNDS, EVALUATIONS, FAILURES)
_MAX_READS = 20
"""How often the files are read until two reads agree; a server may append lines in between."""

Heads = Mapping[str, str]
"""File to the digest of its last line."""


def other_heads(heads: Heads, name: str) -> dict[str, str]:
    """Return the heads that a new line of the file `name` has."""
    return {other: heads.get(other, GENESIS) for other in CHAINED_FILES if other != name}


@dataclass(frozen=True)
class FederationChain:
    """The lines of the three files. Their chain is intact."""

    files: Mapping[str, ChainFile]

    @property
    def rounds(self) -> ChainFile:
        return self.files[ROUNDS]

    @property
    def newest(self) -> str:
        """The digest of the line that was written last, which covers all others."""
        for name in (EVALUATIONS, FAILURES):
            if self.files[name].records and not self._lines_after(name, len(self.files[name].records)):
                return self.files[name].head
        return self.rounds.head

    def check_ends_with(self, digest: str) -> int:
        """Return how many evaluations and failures were written after the line with this digest.

        Raise CelmError unless it is the last round, or the newest line of the record.
        """
        for name in (EVALUATIONS, FAILURES):
            if line_number := self.files[name].line_numbers.get(digest):
                following = self._lines_after(name, line_number)
                if following:
                    raise CelmError(
                        f"the record continues after the given digest: it is the digest of line {line_number} "
                        f"of {name}, and {following} lines follow",
                        "earlier lines are unchanged; to check the others, give a later digest",
                    )
                return 0
        self.rounds.check_ends_with(digest)
        return self._lines_after(ROUNDS, len(self.rounds.records))

    def _lines_after(self, name: str, line_number: int) -> int:
        """Return how many lines of all files a line of the file `name` does not cover."""
        heads = self.files[name].records[line_number - 1].get("heads")
        if heads is None:  # an older celm wrote the line
            return 0 if name == ROUNDS else 1
        after = len(self.files[name].records) - line_number
        return after + sum(
            len(self.files[other].records) - self.files[other].line_numbers[digest]
            for other, digest in heads.items()
        )


def read_federation_chain(folder: Path) -> FederationChain:
    """Return the lines of the record. Raise CelmError if its chain is broken."""
    files = {name: ChainFile.parse(folder / name, content) for name, content in _read_files(folder).items()}
    check_links(files[ROUNDS].records, files[ROUNDS].digests, folder / ROUNDS)
    for name in (EVALUATIONS, FAILURES):
        _check_optional_links(files[name])
    for name in CHAINED_FILES:
        _check_heads(files, name)
    return FederationChain(files)


def _read_files(folder: Path) -> dict[str, bytes | None]:
    """Return the content of the files at one moment; None for a file that does not exist."""
    contents: dict[str, bytes | None] = {}
    for _ in range(_MAX_READS):
        previous, contents = contents, {}
        for name in CHAINED_FILES:
            path = folder / name
            with os_errors_as_celm_error(path, "read"):
                contents[name] = path.read_bytes() if path.exists() else None
        if contents == previous:
            break
    return contents


def _check_optional_links(file: ChainFile) -> None:
    """Check `previous` of each line after the lines that an older celm wrote."""
    is_chained = False
    for number, (record, previous) in enumerate(
        zip(file.records, [GENESIS, *file.digests], strict=False), start=1
    ):
        is_chained = is_chained or "previous" in record
        if is_chained and record.get("previous") != previous:
            place = f"line {number - 1} or {number}" if number > 1 else "line 1"
            raise CelmError(
                f"{file.path} was changed at {place}: "
                "a line was edited, or lines were removed, added or reordered"
            )


def _check_heads(files: Mapping[str, ChainFile], name: str) -> None:
    """Check that the lines to which a file's lines refer exist, in the same order."""
    positions = dict.fromkeys(CHAINED_FILES, 0)
    for number, record in enumerate(files[name].records, start=1):
        heads = record.get("heads", {})
        if not isinstance(heads, dict) or not heads.keys() <= set(CHAINED_FILES):
            raise CelmError(f"{files[name].path} is damaged: line {number}: heads")
        for other, digest in heads.items():
            position = files[other].line_numbers.get(digest, -1) if isinstance(digest, str) else -1
            if position < positions[other]:
                raise CelmError(
                    f"{files[other].path} was changed: line {number} of {name} was written after a line of it "
                    "that was edited, moved or removed"
                )
            positions[other] = position
