"""The declaration of a study: rows, methods, metrics, seeds. Each is one short TOML file in `studies/`.

title = "..."               title of the table
paper = "main"              the table of the paper that the study reproduces, if any
metrics = ["accuracy"]      metrics of each method; a row may have its own
seeds = [42, 43, 44]
ground_truth = true         evaluates methods as estimators of contribution. The metrics are then utilities, and every
                            coalition of a row's clients is trained by itself (`celm.study.ground_truth`)
[methods]                   label = settings; the label is the method unless the settings have `method`
[[rows]]                    settings of the row: dataset, split, ...; also a `name` if these do not distinguish rows
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from celm.base.errors import CelmError, suggest_name
from celm.data.registry import datasets
from celm.experiment.component_config import ComponentConfig, SplitConfig
from celm.experiment.config import Experiment
from celm.objectives import objectives
from celm.rules import rules
from celm.study.declarations import read_declaration
from celm.study.paper_results import paper_tables
from celm.study.run_metrics import ACCURACY_METRICS, COST_METRICS, check_metric

_MAX_RETRAINED_CLIENTS = 12


def parse_method(method: str) -> tuple[str, str]:
    """Return rule and objective of `rule`, `rule+objective`, or an objective alone, whose rule is plain averaging.

    >>> parse_method("celm+plain"), parse_method("celm"), parse_method("plain")
    (('celm', 'plain'), ('celm', 'plain'), ('fedavg', 'plain'))
    """
    rule, plus, objective = method.partition("+")
    if not plus and rule not in rules.names() and rule in objectives.names():
        rule, objective = "fedavg", rule
    if not plus and rule not in rules.names():
        raise CelmError(
            f"unknown method '{method}'", suggest_name(method, [*rules.names(), *objectives.names()])
        )
    return rules.check(rule), objectives.check(objective or "plain")


def _name_to_table(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def natural_or_numbered(dataset: str, split: str, clients: int) -> tuple[str, ...]:
    """Return the names of a split's clients; empty if they are not known before the dataset is loaded.

    >>> natural_or_numbered("heart", "natural", 5), natural_or_numbered("heart", "iid", 2)
    (('cleveland', 'hungarian', 'switzerland', 'va'), ('client-0', 'client-1'))
    """
    if split != "natural":
        return tuple(f"client-{i}" for i in range(clients))
    info = getattr(datasets.load(dataset), "info", None)
    return () if info is None else info.clients


class SettingsTables(BaseModel):
    """Tables of settings, as in an experiment. A name may replace a table."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    __pydantic_extra__: dict[str, Annotated[dict[str, Any], BeforeValidator(_name_to_table)]]

    @model_validator(mode="before")
    @classmethod
    def _check_table_names(cls, value: Any) -> Any:
        valid_names = {**cls.model_fields, **Experiment.model_fields}
        for name in value if isinstance(value, dict) else ():
            if name not in valid_names:
                raise ValueError(f"'{name}' is not a table of settings ({suggest_name(name, valid_names)})")
        return value

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        return {name: dict(table) for name, table in (self.model_extra or {}).items()}


class Method(SettingsTables):
    method: str | None = None
    """Rule and objective; by default the label."""


class RowDataset(ComponentConfig):
    name: str = Field(min_length=1)


class RowSplit(SplitConfig):
    name: str = Field(min_length=1)
    alpha: float | None = None


class Row(SettingsTables):
    dataset: RowDataset
    split: RowSplit
    name: str | None = None
    metrics: list[str] | None = None

    @model_validator(mode="after")
    def _check_method_settings(self) -> Self:
        for name in ("rule", "objective"):
            if name in (self.model_extra or {}):
                raise ValueError(f"'{name}' belongs to a method, not to a row")
        return self

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        row_settings = {
            "dataset": self.dataset.model_dump(exclude_unset=True),
            "split": self.split.model_dump(exclude_unset=True),
        }
        return {**row_settings, **super().settings}

    @property
    def split_label(self) -> str:
        """The split as the paper's tables name it: `pls`, `dirichlet_0.05`."""
        alpha = self.split.alpha
        return self.split.name if alpha is None else f"{self.split.name}_{alpha:g}"

    @property
    def label(self) -> str:
        return self.name or f"{self.dataset.name} {self.split_label}"

    @property
    def num_clients(self) -> int | None:
        """Number of clients of the split; None if the dataset determines it."""
        return None if self.split.name == "natural" else self.split.clients

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients; empty if they are not known before the dataset is loaded."""
        return natural_or_numbered(self.dataset.name, self.split.name, self.split.clients)


class StudySpec(BaseModel):
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
    def _check_names(self) -> Self:
        for metric in [*self.metrics, *(metric for row in self.rows for metric in row.metrics or [])]:
            check_metric(metric)
        for label, declared_method in self.methods.items():
            parse_method(declared_method.method or label)
        if self.paper is not None and self.paper not in paper_tables():
            raise ValueError(
                f"paper: unknown table '{self.paper}' ({suggest_name(self.paper, paper_tables())})"
            )
        if self.ground_truth:
            self._check_ground_truth()
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must be without duplicates")
        for kind, labels in (("rows", [row.label for row in self.rows]), ("methods", list(self.methods))):
            for label in labels:
                same_slug = [other for other in labels if slug(other) == slug(label)]
                if len(same_slug) > 1:
                    raise ValueError(
                        f"{kind} '{same_slug[0]}' and '{same_slug[1]}' would share a folder (give them other names)"
                    )
        return self

    def _check_ground_truth(self) -> None:
        for metric in self.metrics:
            if metric not in {*ACCURACY_METRICS, *COST_METRICS}:
                expected = f"one of {', '.join(ACCURACY_METRICS)}, or a cost"
                raise ValueError(f"ground_truth: metric '{metric}' is not a utility ({expected})")
        for row in self.rows:
            if not row.client_names:
                raise ValueError(
                    f"ground_truth: row '{row.label}' has no number of clients (set split.clients)"
                )
            if len(row.client_names) > _MAX_RETRAINED_CLIENTS:
                raise ValueError(
                    f"ground_truth: row '{row.label}' has {len(row.client_names)} clients, of which all coalitions "
                    f"cannot be trained (at most {_MAX_RETRAINED_CLIENTS})"
                )
            if row.metrics is not None:
                raise ValueError(
                    f"ground_truth: row '{row.label}' has metrics (set them for the whole study)"
                )

    @property
    def rows_and_metrics(self) -> list[tuple[Row, str]]:
        """All pairs of row and metric."""
        return [(row, metric) for row in self.rows for metric in row.metrics or self.metrics]

    @property
    def single_metric(self) -> str | None:
        """The metric, if there is only one; else None."""
        distinct = {metric for _, metric in self.rows_and_metrics}
        return distinct.pop() if len(distinct) == 1 else None

    @property
    def has_one_method(self) -> bool:
        """Whether metrics, not methods, are the columns of the table."""
        return len(self.methods) == 1

    def table_label(self, row: Row, metric: str) -> str:
        """Return the label of a line of the table, with the metric unless title or column name it."""
        return row.label if self.single_metric or self.has_one_method else f"{row.label} {metric}"

    @property
    def num_runs(self) -> int:
        """Number of runs at the paper's scale."""
        return sum(len(self.methods_for_row(row)) for row in self.rows) * len(self.seeds)

    def methods_for_row(self, row: Row) -> dict[str, Method]:
        """Return the methods of a row and, with ground truth, every coalition."""
        return {**self.methods, **(coalition_methods(row.client_names) if self.ground_truth else {})}


def slug(text: object) -> str:
    """Return a label as a part of a file name.

    >>> slug("lr > 0.1")
    'lr_0.1'
    """
    return re.sub(r"[^A-Za-z0-9_.+]+", "_", str(text)).strip("_")


def coalition_methods(clients: Sequence[str]) -> dict[str, Method]:
    """Return every coalition except the empty one, as a method: plain averaging of its members alone.

    >>> list(coalition_methods(["a", "b"]))
    ['clients 0', 'clients 1', 'clients 0+1']
    >>> coalition_methods(["a", "b"])["clients 0+1"].settings
    {'run': {'clients': ['a', 'b']}}
    """
    methods = {}
    for coalition in range(1, 1 << len(clients)):
        members = [i for i in range(len(clients)) if coalition >> i & 1]
        label = "clients " + "+".join(map(str, members))
        run = {"clients": [clients[i] for i in members]}
        methods[label] = Method.model_validate({"method": "fedavg", "run": run})
    return methods


def load_study(name: str) -> StudySpec:
    """Load a built-in study by its name, or a user's study from a TOML file."""
    text = read_declaration(name)
    try:
        return StudySpec.model_validate({"name": Path(name).stem, **tomllib.loads(text)})
    except tomllib.TOMLDecodeError as error:
        raise CelmError(f"study '{name}' is not TOML: {error}") from error
    except ValidationError as error:
        first_error = error.errors()[0]
        location = ".".join(map(str, first_error["loc"])) or "the study"
        reason = first_error["msg"].removeprefix("Value error, ")
        raise CelmError(f"study '{name}' is invalid: {location}: {reason}") from error
