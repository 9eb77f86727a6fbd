"""The model that an experiment trains: what it names, adapted by its objective.

A recipe is all it takes to build it again: in a worker process, or when a run's model is read from its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from celm.base.errors import CelmError
from celm.base.files import read_tensors
from celm.base.randomness import derive
from celm.federation.experiment import ModelChoice, ObjectiveChoice
from celm.models import build_model, named_by_both
from celm.models.anatomy import find_head
from celm.models.state import StateDict
from celm.objectives import objectives
from celm.objectives.objective import AnyObjective


@dataclass(frozen=True)
class Recipe:
    model: ModelChoice
    objective: ObjectiveChoice
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    seed: int

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model.model_dump(mode="json", exclude_none=True),
            "objective": self.objective.model_dump(mode="json", exclude_none=True),
            "input_shape": list(self.input_shape),
            "classes": list(self.classes),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Recipe:
        try:
            return cls(
                ModelChoice.model_validate(about["model"]),
                ObjectiveChoice.model_validate(about["objective"]),
                tuple(about["input_shape"]),
                tuple(about["classes"]),
                about["seed"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CelmError("it is not said how the model is built") from error

    @classmethod
    def of_file(cls, path: Path, given: str | None) -> tuple[Recipe, StateDict]:
        """How the model in a file is built, and its tensors; code that the file names must be `given`, too."""
        state, about = read_tensors(path)
        try:
            recipe = cls.from_json(about)
        except CelmError as error:
            raise CelmError(f"{path} is damaged: {error}") from error
        named_by_both(recipe.model.name, given, path)
        return recipe, state


@dataclass(frozen=True)
class Architecture:
    module: nn.Module
    head: str
    objective: AnyObjective


def build_architecture(recipe: Recipe) -> Architecture:
    """The same each time, initial values included; some objectives change the model (MOON, FedGELA)."""
    model, classes = recipe.model, len(recipe.classes)
    objective = objectives.build(recipe.objective.name, recipe.objective.options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.seed, "init"))
        module = build_model(model.name, model.options, recipe.input_shape, classes)
        head = find_head(module, classes, model.head)
        module = objective.adapt(module, head)
    return Architecture(
        module, head if objective.keeps_architecture else find_head(module, classes), objective
    )
