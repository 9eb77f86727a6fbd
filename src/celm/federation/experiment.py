"""The settings of a run: typed, closed, and light to import (no torch), so that a run folder can exist at once.

What is chosen by name (dataset, split, model, rule, objective, attack) has settings of its own beside the name;
those are checked when the chosen thing is loaded (`celm.federation.assembly`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from celm.attacks import attacks
from celm.base.errors import CelmError, nearest
from celm.base.files import read_text
from celm.base.registry import explain
from celm.data.catalogue import datasets, splits
from celm.models import check_model_name
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.robust import combines, filters


class Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Choice(Table):
    """Something chosen by name, with settings of its own beside the name."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

    @model_validator(mode="before")
    @classmethod
    def from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def finite(self) -> Self:
        for key, value in self.options.items():
            numbers = value if isinstance(value, list) else [value]
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise CelmError(f"setting '{key}' of '{self.name}' must be a finite number, not {value}")
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DatasetChoice(Choice):
    name: str = "digits"
    limit: Annotated[int, Field(ge=1)] | None = None
    """At most so many training samples of each class, the first ones; for quick trials."""


class RuleChoice(Choice):
    name: str = "celm"


class ObjectiveChoice(Choice):
    name: str = "plain"


class SplitChoice(Choice):
    name: str = ""
    """Empty: the dataset's usual split."""
    clients: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Number of clients (the natural split brings its own)."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    """Seed of the split; by default the run's."""


class ModelChoice(Choice):
    name: str = ""
    """Empty: the dataset's usual model. A name, or pkg.module:factory."""
    head: str | None = None
    """Name of the last linear layer, where it is not found by itself."""


class Train(Table):
    """How clients train."""

    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate; by default the dataset's."""
    decay_at: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = (50,)
    """After these rounds the rate is multiplied by `decay`."""
    decay: Annotated[float, Field(gt=0)] = 0.1
    batch: Annotated[int, Field(ge=1)] = 128
    epochs: Annotated[int, Field(ge=1)] = 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    def rate(self, number: int) -> float:
        """The learning rate of round `number`, counted from 1."""
        if self.lr is None:
            raise ValueError("the learning rate is not resolved yet")
        return self.lr * self.decay ** sum(number > at for at in self.decay_at)


PROBES: dict[str, dict[str, Any]] = {"exact": {}, "fast": {"steps": 50, "lr": 0.04}}
"""Named ways to probe. `fast` walks as far as the exact one, in fewer and longer steps (results/bench)."""


class Probing(Table):
    """How models are probed. A name stands for settings: `probe = "fast"`."""

    steps: Annotated[int, Field(ge=0)] = 200
    """L: optimisation steps."""
    lr: Annotated[float, Field(gt=0)] = 0.01
    """η: Adam's step size."""
    l2: Annotated[float, Field(ge=0)] = 1e-3
    """λ: weight of the sum of squares of the input."""
    chunk: Annotated[int, Field(ge=1)] | None = None
    """At most so many (model, class) pairs at a time; bounds memory, changes results by rounding only."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Begin with few long steps, and double them until scores are about so near to those of all steps."""
    classes: Annotated[int, Field(ge=2)] | None = None
    """Probe so many classes a round, others in the next; scores then have a standard error. By default all."""

    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the slopes; fewer bits are faster where the device computes so, and change the scores a little."""
    keep: bool = True
    """Whether to keep where probes end, for the next round's to begin there and for pictures; else all begin from
    noise, and memory does not grow with clients x classes x pixels."""

    @model_validator(mode="before")
    @classmethod
    def from_name(cls, value: Any) -> Any:
        named = {"name": value} if isinstance(value, str) else value
        if not isinstance(named, dict) or "name" not in named:
            return value
        name = named["name"]
        if not isinstance(name, str) or name not in PROBES:
            raise CelmError(f"unknown way to probe '{name}'", nearest(str(name), PROBES))
        return PROBES[name] | {key: value for key, value in named.items() if key != "name"}


class Running(Table):
    """How long and where."""

    rounds: Annotated[int, Field(ge=1)] | None = None
    """Communication rounds; by default the dataset's."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the clients that take part in each round."""
    clients: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Only these of the clients that the split deals to; by default all."""
    validation: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of every client's samples held out for validation; by default 0.1 where a rule needs it, else 0."""
    local_heads: Annotated[int, Field(ge=0)] | None = None
    """For how many first rounds clients keep their own head; by default what the rule asks for."""
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    """Evaluate every so many rounds, and always the last."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Worker processes; 0 trains in this process; by default chosen by the size of the work."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads of this process and of each worker; part of what makes results bit-identical."""
    device: str = "cpu"

    def conditions(self) -> str:
        """What an estimator asked for that changes the training of all: local heads, a hold-out; empty if nothing."""
        parts = []
        if self.local_heads:
            parts.append(f"clients keep their heads for {self.local_heads} of {self.rounds} rounds")
        if self.validation:
            parts.append(f"{self.validation:.0%} of every client's samples are held out")
        return "; ".join(parts)


class Experiment(Table):
    """One federation from start to end. Names may stand for whole tables: `Experiment(rule="celm")`."""

    dataset: DatasetChoice = DatasetChoice()
    split: SplitChoice = SplitChoice()
    model: ModelChoice = ModelChoice()
    train: Train = Train()
    rule: RuleChoice = RuleChoice()
    objective: ObjectiveChoice = ObjectiveChoice()
    probe: Probing = Probing()
    observe: tuple[Choice, ...] = ()
    """Rules that only weigh, beside the one that aggregates, on one and the same trajectory."""
    filter: Choice | None = None
    combine: Choice | None = None
    attack: Choice | None = None
    run: Running = Running()

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        datasets.check(self.dataset.name)
        for rule in (self.rule, *self.observe):
            rules.check(rule.name)
        objectives.check(self.objective.name)
        if self.split.name:
            splits.check(self.split.name)
        if self.model.name:
            check_model_name(self.model.name)
        for choice, registry in ((self.attack, attacks), (self.filter, filters), (self.combine, combines)):
            if choice is not None:
                registry.check(choice.name)
        observed = [rule.name for rule in self.observe]
        if len(set(observed)) < len(observed):
            raise CelmError("observe: every rule can be named only once")
        return self

    @classmethod
    def parse(cls, tables: Mapping[str, Any]) -> Experiment:
        """From tables as TOML gives them; the first thing wrong is an error that names it."""
        try:
            return cls.model_validate_json(_json(tables))
        except ValidationError as error:
            loc = error.errors()[0]["loc"]
            known = list(cls.model_fields)
            if len(loc) > 1 and isinstance(kind := cls.model_fields[str(loc[0])].annotation, type):
                known = list(getattr(kind, "model_fields", {}))
            raise CelmError(
                *explain(error, "", known, f"'{loc[0]}'" if len(loc) > 1 else "the experiment")
            ) from error

    @classmethod
    def read(cls, path: Path) -> Experiment:
        """From a TOML file."""
        return cls.parse(read_toml(path))

    def tables(self) -> dict[str, Any]:
        """Everything that is set, as plain tables."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Everything that is set, as a file that `celm run` takes."""
        return tomli_w.dumps(self.tables())

    @property
    def method(self) -> str:
        """`rule`, or `rule+objective`."""
        plain = self.objective.name == "plain"
        return self.rule.name if plain else f"{self.rule.name}+{self.objective.name}"


def _json(tables: Mapping[str, Any]) -> str:
    import json

    try:
        return json.dumps(tables)
    except TypeError as error:
        raise CelmError(f"a setting is of a kind that settings cannot have: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise CelmError(f"cannot read {path}: {error}") from error


def assign(tables: dict[str, Any], assignment: str) -> None:
    """Put `table.key=value`, or `table=name`, into tables; a value is read as TOML, and as text where it is not.

    >>> tables = {}
    >>> assign(tables, "split.alpha=0.05"); assign(tables, "dataset.name=digits"); tables
    {'split': {'alpha': 0.05}, 'dataset': {'name': 'digits'}}
    """
    path, equals, text = assignment.partition("=")
    table, dot, key = path.strip().partition(".")
    if not equals or bool(dot) != bool(key):
        raise CelmError(f"'{assignment}' is not a setting", "write TABLE.KEY=VALUE, as in split.alpha=0.05")
    if table not in Experiment.model_fields:
        raise CelmError(f"unknown setting '{path.strip()}'", nearest(table, Experiment.model_fields))
    value = value_of(text)
    if not key and not isinstance(value, str):
        raise CelmError(f"'{assignment}' is not a setting", "write TABLE.KEY=VALUE or TABLE=NAME")
    put(tables, table, key or "name", value)


def value_of(text: str) -> Any:
    """A value written as in TOML; plain text where it is not."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def put(tables: dict[str, Any], table: str, key: str, value: Any) -> None:
    """Set one key. Another name than before drops the settings of what was chosen before."""
    there = tables.setdefault(table, {})
    if isinstance(there, str):
        there = tables[table] = {"name": there}
    if not isinstance(there, dict):
        raise CelmError(f"'{table}' must be a table of settings, not {there!r}")
    if key == "name" and there.get("name") not in (None, value):
        kept = {"clients", "seed"} if table == "split" else set()
        for old in [name for name in there if name not in kept]:
            del there[old]
    there[key] = value
