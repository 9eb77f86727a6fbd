"""A round's probes: of which models, where each begins, and what is left of it for the next round.

    x(0) = where the last probe of the same model ended, if that is known and finite; else Gaussian noise

The noise is a function of seed and client, never of who else is probed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from celm.base.names import in_order
from celm.method.probe import Probe, Starts, model_noise
from celm.method.stacking import Stack
from celm.rules.exchange import Round
from celm.rules.rule import Facts

GLOBAL = ""
"""The global model's name among those probed: no client has it."""

Walk = Callable[[int, float], Probe]
"""Steps and their rate to where they lead."""


def probe_of_round(
    federation: Facts,
    round: Round,
    last: Mapping[str, Tensor | None],
    columns: list[int],
    calibrated: bool,
) -> Walk:
    """The probe of the global model and, in order, the clients', for the classes `columns`.

    `last`: where the last probe of each model ended, `[K, *shape]`.
    """
    names = [GLOBAL, *in_order(round.clients)]
    inputs = Starts([partial(begin_some, federation, name, last.get(name), columns) for name in names])
    stack = Stack(federation.module, [round.start, *(round.updates[name].model for name in names[1:])])
    return lambda steps, lr: federation.prober(
        stack,
        inputs,
        columns,
        steps=steps,
        lr=lr,
        **federation.probe.always(),
        seed=federation.seed,
        calibrated=calibrated,
    )


def probe_global(federation: Facts, round: Round, last: Tensor | None) -> Tensor:
    """Where a probe of the global model alone ends, `[K, *shape]`."""
    how = federation.probe
    return federation.prober(
        Stack(federation.module, [round.start]),
        begin(federation, GLOBAL, last)[None],
        federation.classes,
        steps=how.steps,
        lr=how.lr,
        **how.always() | {"keep": True},
    ).inputs[0]


def begin(federation: Facts, name: str, last: Tensor | None) -> Tensor:
    """x(0) of a model, `[K, *shape]`."""
    if last is not None and bool(last.isfinite().all()):
        return last
    return model_noise(federation.seed, name, federation.classes, federation.input_shape)


def begin_some(federation: Facts, name: str, last: Tensor | None, columns: list[int]) -> Tensor:
    """x(0) of some classes."""
    return begin(federation, name, last)[columns]


def ended(
    federation: Facts, names: list[str], found: Probe, last: Mapping[str, Tensor | None], columns: list[int]
) -> dict[str, Tensor]:
    """Where the probe of each model ended; classes that were not probed stay where they were."""
    inputs = dict(zip([GLOBAL, *names], found.inputs, strict=True))
    if len(columns) == federation.classes:
        return inputs
    return {name: put(begin(federation, name, last.get(name)), columns, x) for name, x in inputs.items()}


def put(tensor: Tensor, rows: list[int], values: Tensor) -> Tensor:
    """A copy with these rows replaced."""
    changed = tensor.clone()
    changed[rows] = values.to(changed)
    return changed
