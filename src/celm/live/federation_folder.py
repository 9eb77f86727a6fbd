"""The files of a state folder: who may read them, and what happens to lines beyond the last checkpoint.

A server that is killed between the line of a round and its checkpoint leaves one round beyond the checkpoint. This
round is repeated, and its lines are moved to dropped.jsonl. More rounds beyond the checkpoint mean that checkpoints
were lost. The folder is then refused: its record must not shrink silently.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from logging import WARNING
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import PRIVATE_FOLDER, make_private, os_errors_as_celm_error, write_bytes
from celm.base.json_files import append_jsonl
from celm.live.logger import log
from celm.records.federation_chain import EVALUATIONS, FAILURES, ROUNDS, FederationChain
from celm.records.federation_files import NAMES_FILE, SETTINGS_FILE
from celm.records.federation_records import FederationRound
from celm.records.signed.head_log import HEADS_FILE, heads_until, read_heads
from celm.runs.checkpointed_folder import LOCK_FILE, CheckpointedFolder

DROPPED = "dropped.jsonl"
_FILES = (
    *(ROUNDS, EVALUATIONS, FAILURES, HEADS_FILE, DROPPED),
    *("times.jsonl", SETTINGS_FILE, NAMES_FILE, LOCK_FILE),
)


class FederationFolder(CheckpointedFolder):
    """The state folder of a federation. It holds the members' models, so only its owner may read it."""

    round_type = FederationRound
    private = True

    def create(self) -> None:
        """Create the folder if needed, and let only its owner read it and its files (POSIX)."""
        for folder in (self.path, self.checkpoints):
            with os_errors_as_celm_error(folder, "create"):
                folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        files = [self.path / name for name in _FILES if (self.path / name).exists()]
        for path in (self.path, self.checkpoints, *files, *self.checkpoints.iterdir()):
            try:
                if path.stat().st_mode & stat.S_ISVTX:
                    raise PermissionError(errno.EPERM, "it is a folder for all users")
                make_private(path)
            except OSError as error:
                log(WARNING, "others may read %s: %s", path, error.strerror or error)

    def append_line(self, name: str, line: dict[str, Any]) -> None:
        append_jsonl(self.path / name, line, private=True)

    def check_rounds_beyond(self, chain: FederationChain, rounds_done: int) -> None:
        """Raise CelmError if more than one round is beyond the last checkpoint, which is of round `rounds_done`."""
        recorded = len(chain.rounds.records)
        if recorded > rounds_done + 1:
            checkpoint = (
                f"the last checkpoint is of round {rounds_done}" if rounds_done else "no checkpoint is"
            )
            raise CelmError(
                f"{self.path} has lost checkpoints: {recorded} rounds are recorded, but {checkpoint} there",
                f"restore {self.checkpoints} from a backup, or choose another folder to start again at round 1",
            )

    def drop_lines_beyond(self, chain: FederationChain, rounds_done: int) -> None:
        """Move the lines after round `rounds_done`, and incomplete lines, to dropped.jsonl."""
        # Rounds come last: no remaining line then refers to a line that is gone, even after a kill in between.
        for name, last_round in (
            (EVALUATIONS, rounds_done),
            (FAILURES, rounds_done + 1),
            (ROUNDS, rounds_done),
        ):
            records = chain.files[name].records
            if not chain.files[name].exists:
                continue
            beyond = [i for i, line in enumerate(records) if not _is_until(line, last_round)]
            self._drop_lines(name, records, beyond[0] if beyond else len(records))

    def drop_heads_beyond(self, rounds_done: int) -> None:
        """Move the signed heads after round `rounds_done` to dropped.jsonl.

        A head is signed after its round's checkpoint. So such heads remain only if checkpoints were removed.
        """
        if not (self.path / HEADS_FILE).exists():
            return
        entries = read_heads(self.path)
        keep = heads_until(entries, rounds_done)
        if keep < len(entries):
            log(
                WARNING,
                "signed heads after round %d were withdrawn: members that have kept them will report a fork",
                rounds_done,
            )
        self._drop_lines(HEADS_FILE, [entry.envelope.to_json() for entry in entries], keep)

    def _drop_lines(self, name: str, records: Sequence[Any], keep: int) -> None:
        """Move all but the first `keep` lines of a file, and its incomplete last line, to dropped.jsonl."""
        path = self.path / name
        with os_errors_as_celm_error(path, "read"):
            *lines, incomplete = path.read_bytes().split(b"\n")
        dropped = [*records[keep:]]
        if incomplete:
            dropped.append(incomplete.decode(errors="replace"))
        if dropped:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            for line in dropped:
                self.append_line(DROPPED, {"time": now, "file": name, "line": line})
            log(WARNING, "%d unfinished lines of %s were moved to %s", len(dropped), name, DROPPED)
            write_bytes(path, b"".join(line + b"\n" for line in lines[:keep]), private=True)


def _is_until(line: dict[str, Any], last_round: int) -> bool:
    round_number = line.get("round")
    return isinstance(round_number, int) and round_number <= last_round
