"""The settings of a component that is chosen by name: dataset, split, model, rule, objective."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from celm.base.errors import CelmError

HUB_PREFIX = "hf:"
"""Prefix of a dataset or model of the Hugging Face hub."""


class ConfigModel(BaseModel):
    """Base of a table of settings: unknown keys, wrong types and numbers that are not finite are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class ComponentConfig(ConfigModel):
    """A component chosen by name, with its own settings beside the name."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str
    object: str | None = None
    """Digest of an object that was given in place of a name. Only a process with that object can run the experiment."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_finite(self) -> Self:
        for key, value in self.options.items():
            numbers = value if isinstance(value, list) else [value]
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise CelmError(f"setting '{key}' of '{self.name}' is not finite: {value}")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Return the component's own settings."""
        return dict(self.model_extra or {})


class DatasetConfig(ComponentConfig):
    name: str = "digits"
    limit: Annotated[int, Field(ge=1)] | None = None
    """Use only the first `limit` training samples of each class, for quick trials."""


class RuleConfig(ComponentConfig):
    name: str = "celm"

    @property
    def has_other_scores(self) -> bool:
        """Return whether scores come from other evidence than weights (`scores_from` of the rule `celm`)."""
        return self.options.get("scores_from") not in (None, self.options.get("evidence", "paper"))


class ObjectiveConfig(ComponentConfig):
    name: str = "plain"


class SplitConfig(ComponentConfig):
    name: str = ""
    """A split's name; by default the dataset's usual split, or `iid` if that needs more clients."""
    clients: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Number of clients; ignored by the natural split, whose clients come from the data."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    """Seed of the split; by default the run's seed."""


class ModelConfig(ComponentConfig):
    name: str = ""
    """A model's name, pkg.module:factory or hf:NAME; by default the dataset's usual model."""
    head: str | None = None
    """Name of the last linear layer, if it cannot be found automatically."""

    @model_validator(mode="before")
    @classmethod
    def _from_hub_name(cls, value: Any) -> Any:
        """Turn `hf:NAME` into the name `hf` with the setting `weights`. The path of a folder becomes absolute."""
        table = {"name": value} if isinstance(value, str) else value
        name = table.get("name") if isinstance(table, dict) else None
        if not isinstance(name, str) or not name.startswith(HUB_PREFIX):
            return value
        weights = name.removeprefix(HUB_PREFIX)
        if not weights:
            raise CelmError("model 'hf:' has no name", "as in hf:distilbert/distilbert-base-uncased")
        folder = Path(weights).expanduser()
        return {**table, "name": "hf", "weights": str(folder.resolve()) if folder.is_dir() else weights}
