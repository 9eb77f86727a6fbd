"""A folder of rounds and checkpoints that survives a kill at any moment.

Each round is first appended to rounds.jsonl, then its checkpoint is written. The checkpoint determines how many rounds
are done. Later lines of rounds.jsonl are from a round that did not finish, and `truncate_to` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from celm.base import locking
from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import (
    PRIVATE_FOLDER,
    dump_json,
    os_errors_as_celm_error,
    remove_partial_files,
    write_bytes,
    write_text,
)
from celm.base.json_files import append_jsonl, read_jsonl
from celm.records.checksums import check_sha256
from celm.records.run_files import RoundFiles
from celm.records.schema import make_line

if TYPE_CHECKING:
    from torch import Tensor

_MAX_CHECKPOINTS = 2
LOCK_FILE = "run.lock"


class CheckpointedFolder(RoundFiles):
    """A folder with a lock, rounds and checkpoints. Subclasses set `round_type`, the schema of a round."""

    private: ClassVar[bool] = False
    """Whether only the owner may read the files that are written here (POSIX)."""

    # --- one process at a time ------------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder inside the block; raise InUseError if another process has locked it."""
        with locking.exclusive(self.path / LOCK_FILE, private=self.private):
            yield

    def is_locked(self) -> bool:
        """Check whether another process has locked the folder."""
        return locking.is_locked(self.path / LOCK_FILE)

    def remove_leftovers(self) -> None:
        """Remove what a kill leaves: partial files, and a checkpoint that was about to be removed."""
        remove_partial_files(self.path, self.checkpoints)
        self._remove_old_checkpoints()

    # --- rounds ---------------------------------------------------------------------------------------------

    def append_round(self, record: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
        """Append a round to rounds.jsonl and its times to times.jsonl."""
        append_jsonl(self.records_path, make_line(self.round_type, record), private=self.private)
        times = {"round": record["round"], **seconds}
        append_jsonl(self.path / "times.jsonl", times, durable=False, private=self.private)

    def truncate_to(
        self, round_number: int, expected_sha256: str | None = None, source: str = "its checkpoint"
    ) -> None:
        """Remove the lines of rounds.jsonl and times.jsonl after round `round_number`.

        Raise CelmError if the lines that stay do not have the SHA-256 that `source` records, if it records one.
        """
        lines = read_jsonl(self.records_path)
        # Lines after `round_number` must be rounds, too: no crash writes anything else.
        if len(lines) < round_number or any(line.get("round") != i for i, line in enumerate(lines, 1)):
            raise CelmError(
                f"{self.records_path} is damaged: it does not contain rounds 1 to {round_number} in order"
            )
        records = lines[:round_number]
        self.check_records(records)
        if expected_sha256 is not None:
            with os_errors_as_celm_error(self.records_path, "read"):
                content = self.records_path.read_bytes()
            kept = b"".join(line + b"\n" for line in content.split(b"\n")[:round_number])
            check_sha256(self.records_path, bytes_sha256(kept), expected_sha256, source)
        # No result depends on the times, so a damaged times.jsonl is emptied.
        try:
            times = [line for line in self.times() if line.get("round", round_number + 1) <= round_number]
        except CelmError:
            times = []
        for path, kept_lines in ((self.records_path, records), (self.path / "times.jsonl", times)):
            content = "".join(dump_json(line) + "\n" for line in kept_lines).encode()
            with os_errors_as_celm_error(path, "read"):
                changed = not path.exists() or path.read_bytes() != content
            if changed:
                write_bytes(path, content, self.private)

    # --- checkpoints ----------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint_files(self) -> list[Path]:
        return sorted(self.checkpoints.glob("round-*.safetensors"))

    def save_checkpoint(
        self, round_number: int, tensors: dict[str, Tensor], metadata: dict[str, Any]
    ) -> None:
        """Write the checkpoint of a round and remove all but the last two."""
        from celm.base.files import write_tensors

        with os_errors_as_celm_error(self.checkpoints, "create"):
            self.checkpoints.mkdir(PRIVATE_FOLDER if self.private else 0o777, exist_ok=True)
        path = self.checkpoints / f"round-{round_number:06d}.safetensors"
        write_tensors(path, tensors, metadata, self.private)
        self._remove_old_checkpoints()

    def _remove_old_checkpoints(self) -> None:
        for old in self.checkpoint_files()[:-_MAX_CHECKPOINTS]:
            with os_errors_as_celm_error(old, "remove"):
                old.unlink(missing_ok=True)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return tensors and metadata of the newest checkpoint; None if there is no checkpoint."""
        from celm.base.files import read_tensors

        files = self.checkpoint_files()
        if not files:
            return None
        try:
            return read_tensors(files[-1])
        except CelmError as error:
            hint = "delete it to resume from the one before" if len(files) > 1 else "delete it to start again"
            raise CelmError(str(error), hint) from error

    # --- other files ----------------------------------------------------------------------------------------

    def write_json(self, name: str, value: Any) -> None:
        write_text(self.path / name, dump_json(value, indent=2) + "\n", self.private)
