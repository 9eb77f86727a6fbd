"""What the report takes from files, checked once, here: a damaged one is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from celm.base.errors import CelmError
from celm.federation.chain import RECORD, SETTINGS, read_state
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder, read_json, read_lines
from celm.federation.run import Run

Fraction = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Model = TypeVar("Model", bound=BaseModel)


class Read(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="ignore")


class Weighed(Read):
    """What a rule made of a round."""

    round: int
    excluded: dict[str, str] = {}
    standing: dict[str, float] | None = None
    weights: dict[str, float] | None = None
    scores: dict[str, float] | None = None
    evidence: dict[str, list[Amount]] | None = None


class Seen(Read):
    """What a rule that only watched made of a round."""

    evidence: dict[str, list[Amount]] | None = None


class Round(Weighed):
    """A line of a run's rounds.jsonl."""

    clients: list[str]
    observed: dict[str, Seen] = {}
    accuracy: Fraction | None = None
    balanced_accuracy: Fraction | None = None
    rare_class_accuracy: Fraction | None = None


def text_only(value: object) -> object:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


Names = Annotated[list[str], BeforeValidator(text_only)]
"""A rule may write anything into its diagnostics: what are no names is not taken for some."""


class Diagnostics(Read):
    """What rules say of single clients."""

    idle: Names | None = None
    """None where nobody looked."""
    unreadable: Names = []
    faint: Names = []
    removed: Names = []


class StateRound(Weighed):
    """A line of a consortium's rounds.jsonl."""

    time: str
    asked: list[str]
    absent: list[str]
    received: dict[str, Any]
    standing: dict[str, float]
    diagnostics: Diagnostics
    model: str
    merge: str | None = None
    """Why the global model stayed as it was."""
    versions: dict[str, str]


class StateSettings(Read):
    """settings.json of a consortium."""

    rule: dict[str, Any]
    rounds: int
    classes: int
    seed: int


class Failure(Read):
    """A line of failures.jsonl: an attempt at a round that had too few usable replies."""

    round: int
    attempt: int
    excluded: dict[str, str]


class Result(Read):
    """result.json."""

    dataset: str
    split: str
    model: str
    rule: str
    objective: str
    seed: int
    rounds: int
    accuracy: Fraction
    balanced_accuracy: Fraction
    rare_class_accuracy: Fraction | None
    per_class: list[Fraction | None]
    client_accuracy: dict[str, Fraction] | None = None
    personal: bool = False
    """Whether every client has a model of its own; accuracies are then means over those."""
    weights: dict[str, float]
    evidence: dict[str, list[Amount]] | None
    observed: dict[str, dict[str, float] | None] = {}
    classes: list[str]
    counts: dict[str, list[Annotated[int, Field(ge=0)]]]
    rare_classes: list[int] = []
    free_riders: list[str] = []
    seconds: Amount

    @model_validator(mode="after")
    def classes_agree(self) -> Self:
        tables: list[Sequence[object]] = [
            *(self.evidence or {}).values(),
            *self.counts.values(),
            self.per_class,
        ]
        if not self.classes or any(len(row) != len(self.classes) for row in tables):
            raise ValueError("its rows do not have a number for every class")
        if not self.weights:
            raise ValueError("it has no clients")
        if any(not 0 <= k < len(self.classes) for k in self.rare_classes):
            raise ValueError("a rare class is none of its classes")
        return self


class Cell(Read):
    """A cell of table.json: ours and the paper's."""

    row: str
    column: str
    mean: float | None
    std: float | None = None
    count: int = 0
    meant: int = 0
    """How many values the mean should be of."""
    place: Literal[0, 1, 2] = 0
    """1 for the best among its rivals, 2 for the second."""
    paper_mean: float | None = None
    paper_std: float | None = None
    difference: float | None = None
    percent: bool | None = True
    """Whether it is shown in percent, or as it is; None where there is nothing to show."""
    low: bool | None = False
    """Whether less is better."""

    def shown(self, value: float, sign: str = "") -> str:
        scale, digits = (100, 2) if self.percent else (1, 3)
        return f"{scale * value:{sign}.{digits}f}".replace("-", "−")


class Grid(Read):
    """table.json."""

    title: str
    cells: list[Cell]
    compete: str = "rows"
    """Whether the `rows` of a column compete, or the `columns` of a row, or `none`."""
    over: str = "seeds"
    """What figures are means over."""

    @property
    def filled(self) -> list[Cell]:
        """Those that have a figure, ours or the paper's."""
        return [cell for cell in self.cells if cell.mean is not None or cell.paper_mean is not None]


class Standing(Read):
    """Where a run stands in a study."""

    row: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        """As errors.json names it."""
        return f"{self.row}-{self.method}-{self.seed}"


class Asked(Read):
    """study.json: what was asked for, and which run is which."""

    command: list[str]
    """All but `--only`."""
    title: str
    about: str = ""
    study: str | None = None
    """Its name or file; None for a comparison."""
    scale: str | None = None
    seeds: list[int] = []
    only: list[str] = []
    """The parts that were asked for; none means the whole."""
    version: str = ""
    cells: dict[str, Standing] = {}
    """By the folder of the run, seen from the study's."""

    @model_validator(mode="after")
    def command_is_ours(self) -> Self:
        """People copy it into a shell."""
        if self.command[:2] not in (["celm", "study"], ["celm", "compare"]):
            raise ValueError("its command is neither celm study nor celm compare")
        return self

    @property
    def commands(self) -> list[list[str]]:
        """What repeats it, a command a part."""
        return [[*self.command, "--only", part] for part in self.only] or [self.command]


class Told:
    """A run as the report tells it."""

    def __init__(self, path: Path) -> None:
        folder = Folder.open(path)
        run = Run.read(folder)
        self.path = path
        self.run = run
        self.experiment: Experiment = run.experiment
        self.result = parsed(Result, dict(run.metrics), path / "result.json")
        self.rounds = [parsed(Round, record, folder.records_path) for record in run.rounds]
        self.starts = [start for start in folder.facts() if isinstance(start, dict)]
        self.evidence = self.result.evidence
        """Of the rule, or else of the first that only watched and has some."""
        self.watcher: str | None = None
        """Whose evidence it is, if not the rule's."""
        for name in self.result.observed if self.evidence is None else ():
            found = self.seen_by(name)
            if any(len(row) != len(self.result.classes) for row in found.values()):
                raise CelmError(
                    f"{folder.records_path} is damaged: evidence does not have a number for every class"
                )
            if found:
                self.evidence, self.watcher = found, name
                break

    def seen_by(self, observer: str) -> dict[str, list[float]]:
        """The evidence of each client when it was last probed."""
        evidence: dict[str, list[float]] = {}
        for record in self.rounds:
            seen = record.observed.get(observer)
            evidence |= (seen.evidence if seen else None) or {}
        return {client: evidence[client] for client in self.result.weights if client in evidence}

    @property
    def probing(self) -> Mapping[str, Any]:
        """Settings of the rule that the evidence is of."""
        watching = [choice for choice in self.experiment.observe if choice.name == self.watcher]
        return (watching[0] if watching else self.experiment.rule).options

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rounds as figures take them."""
        return [record.model_dump() for record in self.rounds]


class ToldState:
    """The state folder of a consortium as the report tells it, its record verified."""

    def __init__(self, path: Path) -> None:
        kept = read_state(path)
        if kept.settings is None:
            raise CelmError(f"{path} has no {SETTINGS}: a report needs it beside the record")
        record = path / RECORD
        self.path = path
        self.digest = kept.digest
        self.tables = kept.settings
        self.settings = parsed(StateSettings, kept.settings, path / SETTINGS)
        self.rounds = [parsed(StateRound, line, record) for line in kept.records]
        self.failures = [
            parsed(Failure, line, path / "failures.jsonl") for line in read_lines(path / "failures.jsonl")
        ]
        self.probed = next((each for each in reversed(self.rounds) if each.evidence), None)
        """The last round that was."""
        rows = [row for each in self.rounds for row in (each.evidence or {}).values()]
        if any(len(row) != self.settings.classes for row in rows):
            raise CelmError(f"{record} is damaged: evidence does not have a number for every class")
        if not self.weights:
            raise CelmError(f"{record} is damaged: its last line has no clients")

    @property
    def weights(self) -> dict[str, float]:
        return self.rounds[-1].standing

    @property
    def evidence(self) -> dict[str, list[float]] | None:
        return None if self.probed is None else self.probed.evidence

    @property
    def classes(self) -> list[str]:
        """By their numbers; none where nothing was probed."""
        return [str(k) for k in range(self.settings.classes)] if self.probed else []


def read_grid(path: Path) -> Grid:
    return parsed(Grid, read_json(path), path)


def read_asked(path: Path) -> Asked | None:
    """None where the folder was made before there was such a file, or by hand."""
    return parsed(Asked, read_json(path), path) if path.is_file() else None


def read_errors(path: Path) -> dict[str, str]:
    """errors.json: row, method and seed to what went wrong."""
    return {name: str(text) for name, text in read_json(path).items()} if path.is_file() else {}


def parsed(kind: type[Model], value: Mapping[str, Any], path: Path) -> Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CelmError(f"{path} is damaged: {where + ': ' if where else ''}{first['msg']}") from error
