"""Idle checks: when to re-check which clients still train, after the warm-up.

    never      as in the paper
    every:n    every n rounds, at the inputs of a new probe of the global model
    on-drift   every round, at the inputs of the last probe; then with a new probe if a client is idle

While no client is idle, `on-drift` begins with a screening, which calibrates with fewer noise inputs. If every client
moves clearly more than an idle one, the round needs no other check.
An idle client has weight 0 until a check finds that it trains again. The other weights keep their proportions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.core.calibration import NUM_NOISE
from celm.core.idle_detection import IDLE_THRESHOLD
from celm.core.weights import ClientWeights, normalise_weights
from celm.rules.celm_parts.idle import IdleState, client_movement, movement_by_client
from celm.rules.celm_parts.round_probe import GLOBAL_KEY, initial_inputs, probe_global
from celm.rules.messages import RoundData
from celm.rules.rule import ServerContext

_Effort = Literal["no", "cheap", "full"]
_SCREENING_NOISE = 64
"""Noise inputs of a screening."""
_CLEAR_MOVEMENT = 1.5 * IDLE_THRESHOLD
"""Movement in a screening from which on a client is not checked further."""


class IdleCheck(Protocol):
    """A schedule of idle checks."""

    def due(self, rounds_after_warmup: int) -> _Effort:
        """Return whether a round checks clients, and whether with a new probe (full) or the last one (cheap)."""


class Never:
    """No check."""

    def due(self, rounds_after_warmup: int) -> _Effort:
        return "no"


@dataclass(frozen=True)
class Every:
    """A full check every `interval` rounds."""

    interval: int

    def due(self, rounds_after_warmup: int) -> _Effort:
        return "no" if rounds_after_warmup % self.interval else "full"


class OnDrift:
    """A cheap check in every round."""

    def due(self, rounds_after_warmup: int) -> _Effort:
        return "cheap"


def parse_idle_check(spec: str) -> IdleCheck:
    """Return the check for the setting `never`, `every:n` or `on-drift`."""
    if spec.startswith("every:"):
        return Every(int(spec.removeprefix("every:")))
    return OnDrift() if spec == "on-drift" else Never()


@dataclass(frozen=True)
class IdleCheckResult:
    """The idle clients after a round, and the global model's probe inputs for the next check."""

    state: IdleState
    global_inputs: Tensor | None
    movement: Mapping[str, float | None] = field(default_factory=dict)
    """Movement of the clients, if this round checked them."""

    @property
    def diagnostics(self) -> dict[str, Any]:
        return {"idle": list(self.state.idle), "movement": dict(self.movement)}


def recheck(
    effort: _Effort, state: IdleState, global_inputs: Tensor | None, context: ServerContext, round: RoundData
) -> IdleCheckResult:
    """Check the clients of a round. A cheap check that finds an idle client is repeated with a new probe."""
    result = IdleCheckResult(state, global_inputs)
    if effort == "cheap":
        if global_inputs is not None and not state.idle:
            screening = _check(result, context, round, new_probe=False, num_noise=_SCREENING_NOISE)
            if _all_clearly_train(screening.movement):
                return screening
        result = _check(result, context, round, new_probe=global_inputs is None)
    if effort == "full" or (effort == "cheap" and result.state.idle):
        result = _check(result, context, round, new_probe=True)
    return result


def _all_clearly_train(movement: Mapping[str, float | None]) -> bool:
    return all(d is None or d >= _CLEAR_MOVEMENT for d in movement.values())


def exclude_idle(
    weights: ClientWeights, idle: Sequence[str], present: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return aggregation weights of the present clients and weights of all clients, both 0 for idle clients.

    If all present clients are idle, they keep their aggregation weights.
    """
    active = [name for name in present if name not in idle] or present
    aggregation_weights = {**dict.fromkeys(present, 0.0), **weights.restricted_to(active)}
    client_weights = {name: 0.0 if name in idle else weight for name, weight in weights.by_client.items()}
    return aggregation_weights, normalise_weights(client_weights)


def _check(
    last: IdleCheckResult,
    context: ServerContext,
    round: RoundData,
    new_probe: bool,
    num_noise: int = NUM_NOISE,
) -> IdleCheckResult:
    clients, warm_start = natural_sorted(round.clients), last.global_inputs
    inputs = (
        probe_global(context, round.global_model, warm_start)
        if new_probe
        else initial_inputs(context, GLOBAL_KEY, warm_start)
    )
    movement = client_movement(last.state, context, round, inputs, num_noise)
    return IdleCheckResult(
        last.state.update(clients, movement), inputs, movement_by_client(clients, movement)
    )
