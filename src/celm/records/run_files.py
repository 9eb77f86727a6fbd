"""Read a run folder. `celm.runs.run_folder` writes it.

settings.toml               all settings; written before any heavy work
environment.json            versions and host of each start
rounds.jsonl                one line per round: metrics, weights, scores, evidence
times.jsonl                 one line per round: seconds. A file of its own, so that rounds.jsonl repeats byte for byte
checkpoints/round-*.safetensors   the state after the last two rounds
probes.safetensors          the inputs at which the last probes ended
model.safetensors           the global model, at the end
result.json                 the result, at the end: a run that has it is finished
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.json_files import parse_jsonl, read_json, read_jsonl
from celm.experiment.config import Experiment
from celm.records.checksums import (
    MODEL_FILE,
    check_sha256,
    check_values,
    run_file_sha256,
)
from celm.records.run_records import Environment, EnvironmentStart, RoundRecord, RunResult, RunRound
from celm.records.schema import parse_record, read_record

if TYPE_CHECKING:
    from torch import Tensor

_TAIL_BYTES = 2**22
"""Bytes read to find the last line of rounds.jsonl: enough for thousands of clients."""


class RoundFiles:
    """The rounds of a folder: rounds.jsonl and times.jsonl."""

    round_type: ClassVar[type[RoundRecord]]
    """The schema of a line of rounds.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def records_path(self) -> Path:
        return self.path / "rounds.jsonl"

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of rounds.jsonl, checked. An incomplete last line, from a kill, does not count."""
        lines = read_jsonl(self.records_path)
        self.check_records(lines)
        return lines

    def check_records(self, lines: Sequence[dict[str, Any]]) -> None:
        """Raise CelmError unless the lines of rounds.jsonl fit their schema."""
        for number, line in enumerate(lines, 1):
            parse_record(self.round_type, line, self.records_path, number)

    def times(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / "times.jsonl")

    def server_times(self) -> dict[int, float]:
        """Return round to seconds at the server. A damaged times.jsonl counts as empty: no result depends on it."""
        try:
            lines = self.times()
        except CelmError:
            return {}
        measurements = [(line.get("round"), line.get("server_seconds")) for line in lines]
        return {
            number: float(seconds)
            for number, seconds in measurements
            if isinstance(number, int) and isinstance(seconds, int | float)
        }


@dataclass(frozen=True)
class FinishedRun:
    """The files of a finished run, checked against each other."""

    experiment: Experiment
    result: RunResult
    rounds: Sequence[RunRound]
    records: Sequence[dict[str, Any]]
    """The rounds as in the file."""


class RunFiles(RoundFiles):
    """The files of a run folder."""

    round_type = RunRound

    @classmethod
    def open(cls, path: Path) -> Self:
        if not (path / "settings.toml").is_file():
            raise CelmError(f"{path} is not a run folder: it has no settings.toml")
        return cls(path)

    def settings(self) -> Experiment:
        return Experiment.read(self.path / "settings.toml")

    def result(self) -> RunResult | None:
        """Return the result of a finished run, else None."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        values = read_json(path)
        result = parse_record(RunResult, values, path)
        check_values(path, values, result.sha256)
        return result

    def read_finished(self, check_model: bool = True) -> FinishedRun:
        """Return settings, result and rounds. Raise CelmError if the run is not finished or its files do not agree.

        `check_model` includes the model, which takes time if it is large.
        """
        result = self.result()
        if result is None:
            raise CelmError(f"{self.path} is not finished", f"resume it: celm run --resume {self.path}")
        with os_errors_as_celm_error(self.records_path, "read"):
            content = self.records_path.read_bytes()
        records = parse_jsonl(content, self.records_path)
        rounds = [parse_record(RunRound, line, self.records_path, i) for i, line in enumerate(records, 1)]
        if [line.round for line in rounds] != list(range(1, result.rounds + 1)):
            raise CelmError(
                f"{self.records_path} is damaged: it does not contain rounds 1 to {result.rounds} in order"
            )
        weightings = [weighting for line in rounds for weighting in (line, *line.observed.values())]
        if any(len(row) != len(result.classes) for w in weightings for row in (w.evidence or {}).values()):
            raise CelmError(
                f"{self.records_path} is damaged: evidence does not have one number for each class"
            )
        check_sha256(
            self.records_path, bytes_sha256(content), result.files.get("rounds.jsonl"), "result.json"
        )
        settings = self.settings()
        for name in ("settings.toml", *([MODEL_FILE] if check_model else [])):
            self._check_file(name, result)
        return FinishedRun(settings, result, rounds, records)

    def check_model_file(self) -> None:
        """Raise CelmError if the model of a finished run is not the one that its result belongs to."""
        if (result := self.result()) is not None:
            self._check_file(MODEL_FILE, result)

    def _check_file(self, name: str, result: RunResult) -> None:
        path = self.path / name
        if name in result.files and path.exists():
            check_sha256(path, run_file_sha256(path), result.files[name], "result.json")

    def last_round(self) -> dict[str, Any]:
        """Return the last line of rounds.jsonl without checks; empty if no line can be read.

        This serves displays of progress while another process appends to the file.
        """
        try:
            with self.records_path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
                lines = file.read().split(b"\n")
            record = json.loads(lines[-2])
        except (OSError, ValueError, IndexError):
            return {}
        return record if isinstance(record, dict) else {}

    def environments(self) -> list[EnvironmentStart]:
        """Return versions and host of each start of the run."""
        path = self.path / "environment.json"
        return read_record(Environment, path).starts if path.exists() else []

    def probe_inputs(self) -> dict[str, Tensor] | None:
        """Return client to the inputs `[K, *shape]` at which its last probe ended; None if nothing was probed."""
        from celm.base.files import read_tensors

        path = self.path / "probes.safetensors"
        return read_tensors(path)[0] if path.exists() else None
