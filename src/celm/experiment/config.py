"""Settings of a run: typed, closed and light to import (no torch).

A component that is chosen by name (dataset, split, model, rule, objective, attack, ...) has settings of its own beside
its name. They are checked when the component is built (`celm.federation.build`); only old names are refused before.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from celm.attacks import attacks
from celm.base.errors import CelmError, suggest_name
from celm.base.files import read_text
from celm.base.registry import describe_validation_error
from celm.base.text import single_line, truncate
from celm.data.registry import datasets, splits
from celm.experiment.component_config import (
    ComponentConfig,
    ConfigModel,
    DatasetConfig,
    ModelConfig,
    ObjectiveConfig,
    RuleConfig,
    SplitConfig,
)
from celm.experiment.keywords import KEYWORDS, expand_keywords
from celm.experiment.objects import name_objects
from celm.models import check_model_name
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.robust import aggregators, filters

_SGD_ONLY = ("fednova", "scaffold")
"""Rules and objectives that divide an update by learning rate or steps."""


class TrainConfig(ConfigModel):
    """Local training."""

    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate; by default the dataset's."""
    decay_at: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = (50,)
    """Rounds after which the learning rate is multiplied by `decay`."""
    decay: Annotated[float, Field(gt=0)] = 0.1
    """Factor of each decay of the learning rate."""
    batch: Annotated[int, Field(ge=1)] = 128
    """Batch size."""
    epochs: Annotated[int, Field(ge=1)] = 1
    """Local epochs per round."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimiser of a client. Adam starts anew in each round; it needs a smaller `lr`, such as 0.001."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of SGD."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay, added to the gradient."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of each label that is spread evenly over all classes."""
    dp_clip: Annotated[float, Field(gt=0)] | None = None
    """Largest L2 norm of a client's update, which the client clips before it uploads; by default no limit."""
    dp_noise: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the noise that each client adds to its update, in units of `dp_clip`."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.optimizer == "adam" and self.momentum:
            raise CelmError(
                "train.momentum: Adam has its own", "remove train.momentum, or use train.optimizer=sgd"
            )
        if self.dp_noise and self.dp_clip is None:
            raise CelmError(
                "train.dp_noise: noise is in units of train.dp_clip, which is not set", "set train.dp_clip"
            )
        return self

    def lr_at(self, round_number: int) -> float:
        """Return the learning rate of round `round_number`, counted from 1."""
        if self.lr is None:
            raise ValueError("the learning rate is not resolved yet")
        return self.lr * self.decay ** sum(round_number > at for at in self.decay_at)


_PROBE_PRESETS: dict[str, dict[str, Any]] = {"exact": {}, "fast": {"steps": 50, "lr": 0.04}}
"""Presets of the probe. `fast` covers the same distance as `exact` in fewer, longer steps (results/bench)."""


class ProbeConfig(ConfigModel):
    """Settings of the probe. The name of a preset can replace the table: `probe = "fast"`."""

    steps: Annotated[int, Field(ge=0)] = 200
    """L: optimisation steps."""
    lr: Annotated[float, Field(gt=0)] = 0.01
    """η: Adam's step size."""
    l2: Annotated[float, Field(ge=0)] = 1e-3
    """λ: weight of the input's squared L2 norm."""
    chunk: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of (model, class) pairs per batch; bounds memory and changes results by rounding only."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Start with few long steps and double their number until scores are about this close to those of all steps."""
    classes: Annotated[int, Field(ge=2)] | None = None
    """Number of classes probed per round, in rotation; scores then have a standard error. By default all classes."""

    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the gradients; lower precision is faster on devices that support it and changes scores a little."""
    keep_inputs: bool = True
    """Whether to keep the final inputs of each probe, as starting points for the next round and for figures. If false,
    every probe starts from noise, and memory does not grow with clients x classes x pixels."""
    layer: Literal["frozen"] | None = None
    """`frozen`: probe the output of the model's frozen stage (`model.trainable`) in place of its input."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, dict) or "name" not in table:
            return value
        name = table["name"]
        if not isinstance(name, str) or name not in _PROBE_PRESETS:
            raise CelmError(f"unknown probe '{name}'", suggest_name(str(name), _PROBE_PRESETS))
        return _PROBE_PRESETS[name] | {key: value for key, value in table.items() if key != "name"}


class RunConfig(ConfigModel):
    """Length, randomness and resources of a run."""

    rounds: Annotated[int, Field(ge=1)] | None = None
    """Communication rounds; by default the dataset's."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Seed of all randomness."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the clients that are selected in each round."""
    clients: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Names of the clients that take part; by default all clients of the split."""
    validation: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of each client's samples held out for validation; by default 0.1 if a rule needs it, else 0."""
    local_heads: Annotated[int, Field(ge=0)] | None = None
    """Number of first rounds in which clients keep their own head; by default the most that any of the rules needs."""
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    """Evaluate after every n-th round and after the last."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Worker processes; 0 trains in the main process; by default chosen by the estimated training time."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads of the main process and of each worker; results are bit-identical only for the same number."""
    device: str = "cpu"
    """Device of the server and of local training."""
    cache_frozen: bool = True
    """Whether a model's frozen stage (`model.trainable`) is run once for each sample, with its outputs on disk;
    otherwise in each step, which crops and flips need."""

    def describe_conditions(self) -> str:
        """Describe local heads and hold-out, which change the training of all clients; empty if there are neither."""
        parts = []
        if self.local_heads:
            rounds = "round 1" if self.local_heads == 1 else f"rounds 1-{self.local_heads}"
            parts.append(f"Warm-up: in {rounds} of {self.rounds}, clients keep their own classifier head.")
        if self.validation:
            parts.append(f"{self.validation:.0%} of each client's samples are held out.")
        return " ".join(parts)


class Experiment(ConfigModel):
    """One federation from start to end. A name can replace a table: `Experiment(rule="celm")`.

    `rounds`, `seed`, `clients`, `participation`, `evidence`, `idle_check`, `workers` and `device` may be given without
    their table, as on the command line. `preset` adds named settings. A path as `dataset` is a folder of your own data.
    An object can replace a name: a rule, split, objective or attack, a module or its factory, arrays `(x, y)`, torch
    and Hugging Face datasets. `run` says what the run folder cannot save; see `resume`.
    """

    dataset: DatasetConfig = DatasetConfig()
    split: SplitConfig = SplitConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    rule: RuleConfig = RuleConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    probe: ProbeConfig = ProbeConfig()
    observe: Annotated[tuple[ComponentConfig, ...], Field(strict=False)] = ()
    """Rules that compute weights beside the rule that aggregates, on the same trajectory."""
    filter: ComponentConfig | None = None
    aggregator: ComponentConfig | None = None
    attack: ComponentConfig | None = None
    run: RunConfig = RunConfig()

    if TYPE_CHECKING:  # names, tables and keywords are all valid

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="wrap")
    @classmethod
    def _report_first_error(cls, tables: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise a CelmError that names the first wrong setting, in Python as on the command line."""
        try:
            if isinstance(tables, Mapping):
                tables = _copy_plain(expand_keywords(name_objects(tables)))
            return handler(tables)
        except ValidationError as error:
            raise CelmError(*_describe_first_error(error)) from error

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if not self.dataset.object:
            datasets.check(self.dataset.name)
        for rule in (self.rule, *self.observe):
            if not rule.object:
                rules.check(rule.name)
                rules.refuse_renamed(rule.name, rule.options)
        if not self.objective.object:
            objectives.check(self.objective.name)
        if self.train.optimizer == "adam":
            for table, name in (("rule", self.rule.name), ("objective", self.objective.name)):
                if name in _SGD_ONLY:
                    raise CelmError(
                        f"train.optimizer: {table} '{name}' assumes steps of SGD", "use train.optimizer=sgd"
                    )
        if self.split.name and not self.split.object:
            splits.check(self.split.name)
        if self.model.name and not self.model.object:
            check_model_name(self.model.name)
        for component, registry in (
            (self.attack, attacks),
            (self.filter, filters),
            (self.aggregator, aggregators),
        ):
            if component is not None and not component.object:
                registry.check(component.name)
                registry.refuse_renamed(component.name, component.options)
        observed = [rule.name for rule in self.observe]
        if len(set(observed)) < len(observed):
            raise CelmError(f"observe: a rule is named twice: {', '.join(observed)}")
        return self

    @classmethod
    def parse(cls, tables: Mapping[str, Any]) -> Experiment:
        """Build an experiment from tables as in a TOML file."""
        return cls.model_validate(tables)

    @classmethod
    def read(cls, path: Path) -> Experiment:
        """Read an experiment from a TOML file."""
        return cls.parse(read_toml(path))

    def to_dict(self) -> dict[str, Any]:
        """Return every setting that has a value, as plain tables."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Return every setting that has a value, as the text of a file for `celm run`."""
        return tomli_w.dumps(self.to_dict())

    @property
    def method(self) -> str:
        """Return `rule`, or `rule+objective`."""
        is_plain = self.objective.name == "plain"
        return self.rule.name if is_plain else f"{self.rule.name}+{self.objective.name}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise CelmError(f"cannot read {path}: {error}") from error


def _describe_first_error(error: ValidationError) -> tuple[str, str | None]:
    """Return the message and the hint for the first wrong setting."""
    first = error.errors()[0]
    location = first["loc"]
    setting_names, owner = [*Experiment.model_fields, *KEYWORDS, "preset"], "the experiment"
    if first["type"] == "model_type":
        return (
            f"setting '{location[0]}': {truncate(repr(first['input']), 100)} is neither a name nor a table",
            None,
        )
    if len(location) > 1:
        owner = f"'{location[0]}'"
        table_type = Experiment.model_fields[str(location[0])].annotation
        if isinstance(table_type, type):
            setting_names = list(getattr(table_type, "model_fields", {}))
    elif first["type"] == "extra_forbidden" and (table := _table_with(str(location[0]))):
        name = location[0]
        return (
            f"unknown setting '{name}' of the experiment",
            f"write {table}={{'{name}': {first['input']!r:.40}}}",
        )
    return describe_validation_error(error, "", setting_names, owner)


def _table_with(name: str) -> str | None:
    """Return the first table that has a setting of this name."""
    tables: dict[str, type[BaseModel]] = {
        "train": TrainConfig,
        "probe": ProbeConfig,
        "run": RunConfig,
        "dataset": DatasetConfig,
    }
    return next((table for table, kind in tables.items() if name in kind.model_fields), None)


def _copy_plain(value: Any, setting: str = "") -> Any:
    """Return a copy of dicts and lists. Raise CelmError for a value that TOML and JSON cannot both represent."""
    if isinstance(value, Mapping):
        prefix = f"{setting}." if setting else ""
        return {key: _copy_plain(item, f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_plain(item, setting) for item in value]
    if value is None or isinstance(value, str | int | float | bool | BaseModel):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():  # numpy is slow to import
        return value.item()
    shown = truncate(single_line(repr(value)), 60)
    raise CelmError(
        f"setting '{setting}' has an unsupported type: {type(value).__name__} {shown}",
        "give data as (x, y), or as {'train': (x, y)}"
        if setting.startswith("dataset.")
        else "use text, a number, true, false or a list",
    )
