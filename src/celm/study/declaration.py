"""A study as a declaration: rows, methods, metrics, seeds; one short TOML file each in `studies/`.

title = "..."               what the table shows
paper = "main"              which table of the paper it fills, if any
metrics = ["accuracy"]      what is shown of every method; a row may name its own
seeds = [42, 43, 44]
ground_truth = true         methods are judged as estimators of contribution; metrics are then what a model is worth,
                            and every coalition of a row's clients is trained by itself (`celm.study.ground_truth`)
[methods]                   label = settings; the label is the method unless `method` says otherwise
[[rows]]                    settings of the row: dataset, split, ...; a `name` where those do not tell rows apart
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from celm.base.errors import CelmError, nearest
from celm.base.files import read_text
from celm.federation.experiment import Choice, Experiment, SplitChoice
from celm.study.compare import parse_method
from celm.study.measures import ACCURACIES, COSTS, checked
from celm.study.paper import tables


def named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Tables(BaseModel):
    """Settings as an experiment has them, table by table; a name may stand for a table."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    __pydantic_extra__: dict[str, Annotated[dict[str, Any], BeforeValidator(named)]]

    @model_validator(mode="before")
    @classmethod
    def tables_are_known(cls, value: Any) -> Any:
        known = {**cls.model_fields, **Experiment.model_fields}
        for name in value if isinstance(value, dict) else ():
            if name not in known:
                raise ValueError(f"'{name}' is no table of settings ({nearest(name, known)})")
        return value

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        return {name: dict(table) for name, table in (self.model_extra or {}).items()}


class Method(Tables):
    method: str | None = None
    """By default its label."""


class RowDataset(Choice):
    name: str = Field(min_length=1)


class RowSplit(SplitChoice):
    name: str = Field(min_length=1)
    alpha: float | None = None


class Row(Tables):
    dataset: RowDataset
    split: RowSplit
    name: str | None = None
    metrics: list[str] | None = None

    @model_validator(mode="after")
    def methods_choose(self) -> Self:
        for name in ("rule", "objective"):
            if name in (self.model_extra or {}):
                raise ValueError(f"'{name}' is for methods to say, not for a row")
        return self

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        own = {
            "dataset": self.dataset.model_dump(exclude_unset=True),
            "split": self.split.model_dump(exclude_unset=True),
        }
        return {**own, **super().settings}

    @property
    def split_label(self) -> str:
        """As in the paper's tables: `pls`, `dirichlet_0.05`."""
        alpha = self.split.alpha
        return self.split.name if alpha is None else f"{self.split.name}_{alpha:g}"

    @property
    def label(self) -> str:
        return self.name or f"{self.dataset.name} {self.split_label}"

    @property
    def clients(self) -> int | None:
        """How many the split deals to; None where the data has its own."""
        return None if self.split.name == "natural" else self.split.clients


class Study(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    title: str
    about: str = ""
    paper: str | None = None
    metrics: list[str] = Field(default=["accuracy"], min_length=1)
    seeds: list[int] = Field(default=[42, 43, 44], min_length=1)
    ground_truth: bool = False
    methods: dict[str, Method] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)

    @model_validator(mode="after")
    def names_are_known(self) -> Self:
        for metric in [*self.metrics, *(metric for row in self.rows for metric in row.metrics or [])]:
            checked(metric)
        for label, own in self.methods.items():
            parse_method(own.method or label)
        if self.paper is not None and self.paper not in tables():
            raise ValueError(f"paper: it has no table '{self.paper}' ({nearest(self.paper, tables())})")
        if self.ground_truth:
            self.check_truth()
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must name each seed once")
        for what, labels in (("rows", [row.label for row in self.rows]), ("methods", list(self.methods))):
            for label in labels:
                alike = [other for other in labels if slug(other) == slug(label)]
                if len(alike) > 1:
                    raise ValueError(
                        f"{what} '{alike[0]}' and '{alike[1]}' would share a folder: name them apart"
                    )
        return self

    def check_truth(self) -> None:
        for metric in self.metrics:
            if metric not in {*ACCURACIES, *COSTS}:
                known = f"one of {', '.join(ACCURACIES)}, or a cost"
                raise ValueError(f"ground_truth: '{metric}' is not what a model is worth ({known})")
        for row in self.rows:
            if row.clients is None:
                raise ValueError(f"ground_truth: row '{row.label}' does not say how many clients there are")
            if row.metrics is not None:
                raise ValueError(f"ground_truth: metrics are the study's, not for row '{row.label}' to say")

    @property
    def places(self) -> list[tuple[Row, str]]:
        """Row and metric of everything that is shown of a method."""
        return [(row, metric) for row in self.rows for metric in row.metrics or self.metrics]

    @property
    def metric(self) -> str | None:
        """The metric that is meant throughout; None where there are several."""
        several = {metric for _, metric in self.places}
        return several.pop() if len(several) == 1 else None

    @property
    def one_method(self) -> bool:
        """Then metrics are the columns of the table, not methods."""
        return len(self.methods) == 1

    def table_label(self, row: Row, metric: str) -> str:
        """What the table calls a line; with the metric, unless that is one for all or the name of a column."""
        return row.label if self.metric or self.one_method else f"{row.label} {metric}"

    @property
    def runs(self) -> int:
        """At the paper's scale."""
        return sum(len(self.methods_of(row)) for row in self.rows) * len(self.seeds)

    def methods_of(self, row: Row) -> dict[str, Method]:
        """What runs in a row: the methods and, where the truth is asked for, every coalition."""
        return {**self.methods, **(coalitions(row.clients or 0) if self.ground_truth else {})}


def slug(text: object) -> str:
    """A label as a part of a file's name.

    >>> slug("lr > 0.1")
    'lr_0.1'
    """
    return re.sub(r"[^A-Za-z0-9_.+]+", "_", str(text)).strip("_")


def coalitions(clients: int) -> dict[str, Method]:
    """Every coalition of clients but the empty one, as a method: plain averaging of its members alone.

    >>> list(coalitions(2))
    ['clients 0', 'clients 1', 'clients 0+1']
    >>> coalitions(2)["clients 0+1"].settings
    {'run': {'clients': ['client-0', 'client-1']}}
    """
    found = {}
    for coalition in range(1, 1 << clients):
        members = [i for i in range(clients) if coalition >> i & 1]
        label = "clients " + "+".join(map(str, members))
        run = {"clients": [f"client-{i}" for i in members]}
        found[label] = Method.model_validate({"method": "fedavg", "run": run})
    return found


def study_names() -> list[str]:
    return sorted(
        file.name.removesuffix(".toml") for file in files("celm.study").joinpath("studies").iterdir()
    )


def load_study(name: str) -> Study:
    """A study of ours by its name, or of the user's own by the path of its file."""
    if name.endswith(".toml"):
        text = read_text(Path(name))
    elif name in study_names():
        text = files("celm.study").joinpath("studies", f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise CelmError(f"unknown study '{name}'", nearest(name, study_names()))
    try:
        return Study.model_validate({"name": Path(name).stem, **tomllib.loads(text)})
    except tomllib.TOMLDecodeError as error:
        raise CelmError(f"study '{name}' is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the study"
        reason = first["msg"].removeprefix("Value error, ")
        raise CelmError(f"study '{name}' is not well declared: {place}: {reason}") from error
