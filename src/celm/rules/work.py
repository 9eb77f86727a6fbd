"""Who works: how far the clients of a round moved what they were sent, and who of them stands still.

The measure and its bound are celm.method.movement's; here are the models of a round to measure.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from celm.base.names import in_order
from celm.method.movement import idle, movement
from celm.method.stacking import Stack
from celm.models.state import StateDict
from celm.rules.exchange import Round
from celm.rules.rule import Facts


def moves(federation: Facts, round: Round, past: Sequence[StateDict], inputs: Tensor) -> Tensor:
    """How far each client of the round moved what it was sent, `[N]` in client order.

    `past`: earlier global models; to move as they did is no work. `inputs` `[K, *shape]`: where to look.
    """
    names, chunk = in_order(round.clients), federation.probe.chunk
    return movement(
        Stack(federation.module, [round.delivered[name].model for name in names]),
        Stack(federation.module, [round.updates[name].model for name in names]),
        inputs,
        federation.seed,
        [*past, round.start],
        None if chunk is None else max(1, chunk // federation.classes),
    )


def stopped(names: list[str], moved: Tensor, before: Sequence[str]) -> tuple[str, ...]:
    """Who of all known does not work; who cannot be judged stays as it was `before`."""
    judged = named(names, ~moved.isnan())
    return tuple(in_order({*named(names, idle(moved)), *(name for name in before if name not in judged)}))


def told(names: list[str], moved: Tensor) -> dict[str, float | None]:
    """For the record: None where there is nothing to compare with."""
    return {
        name: None if value != value else value for name, value in zip(names, moved.tolist(), strict=True)
    }


def named(names: list[str], which: Tensor) -> list[str]:
    """Those of whom it is true `[N]`."""
    return [name for name, holds in zip(names, which.tolist(), strict=True) if holds]
