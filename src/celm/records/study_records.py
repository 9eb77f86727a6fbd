"""Schemas of a study folder: study.json, table.json (and times.json), errors.json."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from celm.base.json_files import read_json
from celm.records.schema import FileRecord, Schema, read_record

_STUDY_REMEDY = "repeat the study in a new folder"


class TableCell(Schema):
    """A cell of table.json: our statistic and the paper's."""

    row: str
    column: str
    mean: float | None
    std: float | None = None
    count: int = 0
    """Number of values of the mean."""
    meant: int = 0
    """Number of values that the mean should have."""
    place: Literal[0, 1, 2] = 0
    """1 for the best of its competitors, 2 for the second best."""
    paper_mean: float | None = None
    paper_std: float | None = None
    difference: float | None = None
    """Our mean minus the paper's."""
    percent: bool | None = True
    """Whether the value is displayed in percent; None if the cell is empty."""
    low: bool | None = False
    """Whether lower is better."""
    ranked: bool | None = True
    """Whether lower or higher is better at all."""

    def format_value(self, value: float, sign: str = "") -> str:
        scale, digits = (100, 2) if self.percent else (1, 3)
        return f"{scale * value:{sign}.{digits}f}".replace("-", "−")


class TableFile(FileRecord):
    """table.json."""

    reads_unversioned: ClassVar[bool] = True
    remedy = _STUDY_REMEDY

    title: str
    compete: Literal["rows", "columns", "none"] = "rows"
    """Whether the `rows` of a column compete, or the `columns` of a row."""
    over: str = "seeds"
    """The values of a mean, as a noun in the plural."""
    cells: list[TableCell]

    @property
    def filled_cells(self) -> list[TableCell]:
        """Cells with a value of ours or of the paper's."""
        return [cell for cell in self.cells if cell.mean is not None or cell.paper_mean is not None]


class RunKey(Schema):
    """The position of a run in a study."""

    row: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        """The name of the run in errors.json."""
        return f"{self.row}-{self.method}-{self.seed}"


class StudyManifest(FileRecord):
    """study.json: the command, and the position of each run."""

    reads_unversioned: ClassVar[bool] = True
    remedy = _STUDY_REMEDY

    command: list[str]
    """Without `--only`."""
    title: str
    about: str = ""
    study: str | None = None
    """The name or file of the study; None for a comparison."""
    scale: str | None = None
    seeds: list[int] = []
    only: list[str] = []
    """The values of `--only` so far; empty if the whole study was requested."""
    version: str = ""
    cells: dict[str, RunKey] = {}
    """Run folder, relative to the study's, to its position."""

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        # Readers of the report copy the command into a shell.
        if self.command[:2] not in (["celm", "study"], ["celm", "compare"]):
            raise ValueError("command: neither celm study nor celm compare")
        return self

    @property
    def commands(self) -> list[list[str]]:
        """The commands that repeat the study, one for each part."""
        return [[*self.command, "--only", part] for part in self.only] or [self.command]


def read_table(path: Path) -> TableFile:
    return read_record(TableFile, path)


def read_study_manifest(path: Path) -> StudyManifest | None:
    """Return the manifest; None if there is no file, as in a folder of runs that was assembled by hand."""
    return read_record(StudyManifest, path) if path.is_file() else None


def read_errors(path: Path) -> dict[str, str]:
    """Return errors.json: `RunKey.key` to the error of the run. Empty if there is no file."""
    return {name: str(text) for name, text in read_json(path).items()} if path.is_file() else {}
