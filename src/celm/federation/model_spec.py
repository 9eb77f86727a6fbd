"""The model of an experiment, adapted by its objective, and the specification to build it again.

A specification is enough to build the same model in a worker process or from a run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from celm.base.errors import CelmError
from celm.base.files import read_tensors
from celm.base.randomness import derive_seed
from celm.experiment.component_config import ModelConfig, ObjectiveConfig
from celm.models import build_model, require_confirmed_factory
from celm.models.heads import find_head
from celm.models.state_dict import StateDict
from celm.objectives import objectives
from celm.objectives.objective import AnyObjective


@dataclass(frozen=True)
class ModelSpec:
    """Everything that determines a model, its initial values included."""

    model: ModelConfig
    objective: ObjectiveConfig
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON values, as stored beside a model's tensors."""
        return {
            "model": self.model.model_dump(mode="json", exclude_none=True),
            "objective": self.objective.model_dump(mode="json", exclude_none=True),
            "input_shape": list(self.input_shape),
            "classes": list(self.classes),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, metadata: dict[str, Any]) -> ModelSpec:
        """Read a specification from JSON values."""
        try:
            return cls(
                ModelConfig.model_validate(metadata["model"]),
                ObjectiveConfig.model_validate(metadata["objective"]),
                tuple(metadata["input_shape"]),
                tuple(metadata["classes"]),
                metadata["seed"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CelmError("the file has no model specification") from error

    @classmethod
    def from_file(cls, path: Path, confirmed_model: str | None) -> tuple[ModelSpec, StateDict]:
        """Read a specification and its tensors.

        A model factory is code, so the file alone is not trusted: the caller must name it too, as `confirmed_model`.
        """
        state, metadata = read_tensors(path)
        try:
            spec = cls.from_json(metadata)
        except CelmError as error:
            raise CelmError(f"{path} is damaged: {error}") from error
        require_confirmed_factory(spec.model.name, confirmed_model, path)
        return spec, state


@dataclass(frozen=True)
class BuiltModel:
    """A model with the name of its head and the objective that adapted it."""

    module: nn.Module
    head: str
    objective: AnyObjective


def build_from_spec(spec: ModelSpec, objective: AnyObjective | None = None) -> BuiltModel:
    """Build a model; the same specification gives the same initial values. MOON and FedGELA adapt the model.

    `objective` is the specification's objective, if the caller has already built it.
    """
    model, classes = spec.model, len(spec.classes)
    if objective is None:
        objective = objectives.build(spec.objective.name, spec.objective.options, spec.objective.object)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(spec.seed, "init"))
        module = build_model(model.name, model.options, spec.input_shape, classes, model.object)
        head = find_head(module, classes, model.head)
        module = objective.adapt_model(module, head)
    return BuiltModel(module, head if objective.keeps_architecture else find_head(module, classes), objective)
