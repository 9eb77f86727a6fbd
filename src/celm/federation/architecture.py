"""The model that an experiment trains: what it names, adapted by its objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from celm.federation.experiment import Choice, ModelChoice, ObjectiveChoice
from celm.models import build_model
from celm.models.anatomy import find_head
from celm.objectives import objectives
from celm.objectives.objective import AnyObjective


@dataclass(frozen=True)
class Architecture:
    module: nn.Module
    head: str
    objective: AnyObjective


def build_architecture(
    model: ModelChoice, objective: Choice, shape: tuple[int, ...], classes: int
) -> Architecture:
    """Freshly initialised; some objectives change the model (MOON's projection, FedGELA's fixed head)."""
    module = build_model(model.name, model.options, shape, classes)
    head = find_head(module, classes, model.head)
    aim = objectives.build(objective.name, objective.options)
    module = aim.adapt(module, head)
    return Architecture(module, head if aim.keeps_architecture else find_head(module, classes), aim)


def describe_architecture(
    model: ModelChoice, objective: Choice, shape: tuple[int, ...], classes: tuple[str, ...]
) -> dict[str, Any]:
    """What `rebuild_architecture` needs, as JSON."""
    return {
        "model": model.model_dump(mode="json", exclude_none=True),
        "objective": objective.model_dump(mode="json", exclude_none=True),
        "input_shape": list(shape),
        "classes": list(classes),
    }


def rebuild_architecture(about: Mapping[str, Any]) -> Architecture:
    model = ModelChoice.model_validate(about["model"])
    objective = ObjectiveChoice.model_validate(about["objective"])
    return build_architecture(model, objective, tuple(about["input_shape"]), len(about["classes"]))
