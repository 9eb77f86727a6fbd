"""A run's folder: what is in it, and how it survives being killed at any moment.

    settings.toml               every setting; there before any heavy work
    facts.json                  versions and host
    rounds.jsonl                one line a round: metrics, weights, scores, evidence
    times.jsonl                 one line a round: seconds (apart, so that rounds.jsonl repeats byte for byte)
    checkpoints/round-*.safetensors   the state after the last two rounds
    probes.safetensors          the inputs at which the last probes ended
    model.safetensors           the global model, at the end
    result.json                 the answer, at the end: a run that has it is finished

A round is first appended to the record, then its checkpoint is put in place. The checkpoint says which round
the run has reached; lines of the record beyond it are from a round that was not finished, and are dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from celm.base.errors import CelmError
from celm.base.files import dump_json, explained, read_text, write_bytes, write_text
from celm.federation.experiment import Experiment
from celm.models import named_by_both

if TYPE_CHECKING:
    from torch import Tensor

KEPT_CHECKPOINTS = 2
ANSWERS = (
    "rounds", "accuracy", "balanced_accuracy", "rare_class_accuracy", "weights", "evidence", "counts", "seconds",
)  # fmt: skip
"""What a result.json must hold to be read."""


class InUseError(CelmError):
    """Another process holds the folder."""


class Folder:
    def __init__(self, path: Path, fresh: bool = False, made: bool = False) -> None:
        self.path = path
        self.fresh = fresh
        """Begun by this process just now: nothing is lost when the run is removed again."""
        self.made = made
        """Whether the folder itself is ours to remove."""

    # --- beginning ------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, experiment: Experiment, claimed: bool = False) -> Folder:
        """A new run folder with its settings in it; `claimed` says that it was made just before, for this."""
        with explained(path, "create"):
            made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            taken = any(
                child.name != "run.lock" and not child.name.endswith(".part") for child in path.iterdir()
            )
        if taken:
            hint = f"go on with it by: celm run --resume {path}"
            raise CelmError(
                f"{path} is not empty", hint if (path / "settings.toml").exists() else "choose another"
            )
        folder = cls(path, fresh=True, made=made or claimed)
        try:
            folder.write_settings(experiment)
        except BaseException:
            folder.discard()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> Folder:
        if not (path / "settings.toml").is_file():
            raise CelmError(f"{path} is not a run folder: it has no settings.toml")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the lock ends with the process, however that ends."""
        with explained(self.path, "lock"):
            lock = FileLock(self.path / "run.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout as error:
                raise InUseError(f"{self.path} is in use by another process") from error
        try:
            yield
        finally:
            lock.release()

    def in_use(self) -> bool:
        """Whether another process holds it just now."""
        if not (self.path / "run.lock").exists():
            return False
        try:
            with self.locked():
                return False
        except InUseError:
            return True

    def write_settings(self, experiment: Experiment) -> None:
        write_text(self.path / "settings.toml", experiment.to_toml())

    def settings(self) -> Experiment:
        return Experiment.read(self.path / "settings.toml")

    def check_model(self, given: str | None) -> None:
        """Before a folder that may be anybody's is gone on with: code that it names must be `given`, too."""
        if given is not None or self.result() is None:
            named_by_both(self.settings().model.name, given, self.path)

    def discard(self) -> None:
        """Remove a folder that holds nothing but settings that turned out wrong."""
        for name in ("settings.toml", "run.lock"):
            (self.path / name).unlink(missing_ok=True)
        if self.made:
            with suppress(OSError):
                self.path.rmdir()

    def sweep(self) -> None:
        """Remove what a kill in the middle of a write left beside the files."""
        for folder in (self.path, self.checkpoints):
            for left in folder.glob(".*.part"):
                with suppress(OSError):
                    left.unlink()

    # --- rounds ---------------------------------------------------------------------------------------------

    @property
    def records_path(self) -> Path:
        return self.path / "rounds.jsonl"

    def add_round(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        append_line(self.records_path, record)
        append_line(self.path / "times.jsonl", {"round": record["round"], **seconds}, durable=False)

    def records(self) -> list[dict[str, Any]]:
        """The rounds on record; a torn last line, from a kill while writing, does not count."""
        return read_lines(self.records_path)

    def times(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "times.jsonl")

    def server_times(self) -> dict[int, float]:
        """Round to seconds at the server, where the time was taken. Seconds matter little: a damaged file has none."""
        try:
            lines = self.times()
        except CelmError:
            return {}
        taken = [(line.get("round"), line.get("server_seconds")) for line in lines]
        return {
            number: float(seconds)
            for number, seconds in taken
            if isinstance(number, int) and isinstance(seconds, int | float)
        }

    def rewind(self, number: int) -> None:
        """Drop what the record says beyond round `number`."""
        records = read_lines(self.records_path)
        if len(records) < number or any(line.get("round") != i + 1 for i, line in enumerate(records)):
            raise CelmError(f"{self.records_path} is damaged: it does not hold rounds 1 to {number} in order")
        # Seconds matter little: what is left of them is kept, and a damaged file is begun anew.
        try:
            times = [line for line in self.times() if line.get("round", number + 1) <= number]
        except CelmError:
            times = []
        kept = {self.records_path: records[:number], self.path / "times.jsonl": times}
        for path, lines in kept.items():
            content = "".join(dump_json(line) + "\n" for line in lines).encode()
            with explained(path, "read"):
                changed = not path.exists() or path.read_bytes() != content
            if changed:
                write_bytes(path, content)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def save_checkpoint(self, number: int, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        from celm.base.files import write_tensors

        with explained(self.checkpoints, "create"):
            self.checkpoints.mkdir(exist_ok=True)
        write_tensors(self.checkpoints / f"round-{number:06d}.safetensors", tensors, about)
        for old in self.checkpoint_files()[:-KEPT_CHECKPOINTS]:
            with explained(old, "remove"):
                old.unlink(missing_ok=True)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint; None where there is none. A damaged one is an error that says how to go on."""
        from celm.base.files import read_tensors

        files = self.checkpoint_files()
        if not files:
            return None
        try:
            return read_tensors(files[-1])
        except CelmError as error:
            hint = "delete it to go on from the one before" if len(files) > 1 else "delete it to start again"
            raise CelmError(str(error), hint) from error

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint_files(self) -> list[Path]:
        return sorted(self.checkpoints.glob("round-*.safetensors"))

    # --- end ------------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any] | None:
        """The answer of a finished run, else None."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        found = read_json(path)
        missing = [name for name in ANSWERS if name not in found]
        if missing:
            raise CelmError(
                f"{path} is damaged: it has no {missing[0]}", "delete it and resume to have it made again"
            )
        return found

    def facts(self) -> list[dict[str, Any]]:
        """Versions and host, one entry each time the run was taken up."""
        path = self.path / "facts.json"
        starts = read_json(path).get("starts", []) if path.exists() else []
        return starts if isinstance(starts, list) else []

    def write_json(self, name: str, value: Any) -> None:
        write_text(self.path / name, dump_json(value, indent=2) + "\n")


def append_line(path: Path, value: dict[str, Any], durable: bool = True) -> None:
    left = dump_json(value).encode() + b"\n"
    # Unbuffered: a buffer would write the rest of a torn line once more when the file is closed.
    with explained(path, "write"), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while left:
                left = left[file.write(left) :]
            if durable:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # As bytes: a torn line may end within a character, and only "\n" ends a line.
    with explained(path, "read"):
        whole, _, _torn = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested without end
            raise CelmError(f"{path} is damaged: line {number} is not JSON") from error
        if not isinstance(value, dict):
            raise CelmError(f"{path} is damaged: line {number} is not an object")
        lines.append(value)
    return lines


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CelmError(f"{path} is damaged: not JSON") from error
    if not isinstance(value, dict):
        raise CelmError(f"{path} is damaged: not an object")
    return value
