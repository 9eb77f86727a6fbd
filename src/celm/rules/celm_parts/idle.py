"""Idle clients of a round, by how far they moved the model that they received (celm.core.idle_detection).

NoMonitor         checks no client, as in the paper
MovementMonitor   in the warm-up, idle clients have no evidence
idle checks       after the warm-up: celm.rules.celm_parts.idle_check
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.core.calibration import NUM_NOISE
from celm.core.idle_detection import is_idle, relative_movement
from celm.core.model_stack import ModelStack
from celm.models.state_dict import StateDict
from celm.rules.celm_parts.round_probe import probe_global
from celm.rules.messages import RoundData
from celm.rules.rule import ServerContext

GLOBAL_HISTORY = 5
"""Default number of earlier global models in the state."""


@dataclass(frozen=True)
class IdleState:
    """Earlier global models, and the clients that were idle when last checked."""

    history: tuple[StateDict, ...] = ()
    """The first global model and the last ones. Repeating one of their changes does not count as training."""
    idle: tuple[str, ...] = ()

    def record(self, global_model: StateDict, limit: int = GLOBAL_HISTORY) -> IdleState:
        """Add a global model. Keep the first one and the last `limit` - 1; with limit 0 none."""
        history = (*self.history, global_model)
        if len(history) > limit:
            history = (history[0], *history[len(history) - limit + 1 :]) if limit else ()
        return replace(self, history=history)

    def update(self, clients: Sequence[str], movement: Tensor) -> IdleState:
        """Update the idle clients by the movement `[N]` of `clients`. NaN, or absence, changes nothing for a client."""
        measured = select_names(clients, ~movement.isnan())
        unmeasured_idle = [name for name in self.idle if name not in measured]
        idle = {*select_names(clients, is_idle(movement)), *unmeasured_idle}
        return replace(self, idle=tuple(natural_sorted(idle)))


@dataclass(frozen=True)
class IdleReport:
    """A mask `[N]` of idle clients, in client order, and diagnostics."""

    mask: Tensor
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


class IdleMonitor(Protocol):
    """A check for idle clients in a warm-up round."""

    def detect(
        self, state: IdleState, context: ServerContext, round: RoundData, global_inputs: Tensor | None
    ) -> IdleReport:
        """Check the clients of a round at the global model's probe inputs `[K, *shape]`; None: those of a new probe."""


class NoMonitor:
    """A monitor that reports no client as idle."""

    def detect(
        self, state: IdleState, context: ServerContext, round: RoundData, global_inputs: Tensor | None
    ) -> IdleReport:
        return IdleReport(torch.zeros(len(round.clients), dtype=torch.bool))


class MovementMonitor:
    """A monitor that reports clients whose movement is below the threshold."""

    def detect(
        self, state: IdleState, context: ServerContext, round: RoundData, global_inputs: Tensor | None
    ) -> IdleReport:
        clients = natural_sorted(round.clients)
        inputs = probe_global(context, round.global_model, None) if global_inputs is None else global_inputs
        movement = client_movement(state, context, round, inputs)
        mask = is_idle(movement)
        return IdleReport(
            mask, {"idle": select_names(clients, mask), "movement": movement_by_client(clients, movement)}
        )


def client_movement(
    state: IdleState, context: ServerContext, round: RoundData, inputs: Tensor, num_noise: int = NUM_NOISE
) -> Tensor:
    """Return the relative movement d `[N]` of a round's clients, in client order, at inputs `[K, *shape]`."""
    clients, chunk = natural_sorted(round.clients), context.probe.chunk
    return relative_movement(
        ModelStack(context.module, [round.messages[name].model for name in clients]),
        ModelStack(context.module, round.models(clients)),
        inputs,
        context.seed,
        [*state.history, round.global_model],
        None if chunk is None else max(1, chunk // context.classes),
        num_noise,
    )


def movement_by_client(clients: Sequence[str], movement: Tensor) -> dict[str, float | None]:
    """Return the movement of each client; None for NaN, which JSON cannot represent."""
    values = movement.tolist()
    return {name: None if math.isnan(d) else d for name, d in zip(clients, values, strict=True)}


def select_names(clients: Sequence[str], mask: Tensor) -> list[str]:
    """Return the clients for which the mask `[N]` is true."""
    return [name for name, selected in zip(clients, mask.tolist(), strict=True) if selected]
