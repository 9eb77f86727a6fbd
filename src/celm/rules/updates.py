"""What several rules do with updates: changes, lengths, pools, the largest values.

Only parameters have a direction; buffers are averaged as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from celm.method.weights import normalised
from celm.models.deltas import cosine, length
from celm.models.state import StateDict
from celm.rules.exchange import Round
from celm.rules.rule import Facts


def parameter_names(federation: Facts) -> tuple[str, ...]:
    """What of a state dict is trained, under all its names; the rest are buffers, which have no direction."""
    return tuple(name for name, _ in federation.module.named_parameters(remove_duplicate=False))


def change(round: Round, client: str, names: Iterable[str]) -> StateDict:
    """Δ_i of the named tensors; differences too large for their type are cut to its limits."""
    return apart(round.updates[client].model, round.delivered[client].model, names)


def own_change(round: Round, client: str, names: Iterable[str]) -> StateDict:
    """The same of what the client trained, whatever it sent."""
    return apart(round.held(client), round.delivered[client].model, names)


def apart(model: StateDict, start: StateDict, names: Iterable[str]) -> StateDict:
    return {name: torch.nan_to_num(model[name] - start[name]) for name in names}


def rescaled(step: StateDict, size: float, lengthen: bool) -> StateDict:
    """The step at length `size`, or as it is where `size` is 0 or where it is shorter and must not be longer."""
    long = length(step) + 1e-7
    if size == 0 or (not lengthen and long <= size):
        return step
    return {name: tensor * (size / long) for name, tensor in step.items()}


def pooled(round: Round, steps: Mapping[str, StateDict], weights: Mapping[str, float]) -> StateDict:
    """The average of the clients' steps, and of their buffers as they are: a change beside plain values."""
    tensors = [{**round.updates[name].model, **step} for name, step in steps.items()]
    return round.average(tensors, [weights[name] for name in steps])


def alignment(a: Tensor, b: Tensor) -> float:
    """Their cosine; 0 where it cannot be told."""
    found = cosine(a, b)
    return found if math.isfinite(found) else 0.0


def largest(step: Mapping[str, Tensor], fraction: float) -> StateDict:
    """Of each tensor the ⌈fraction size⌉ largest values by magnitude, ties included; zeros elsewhere."""
    if fraction >= 1:
        return dict(step)
    kept: StateDict = {}
    for name, tensor in step.items():
        count = min(math.ceil(fraction * tensor.numel()), tensor.numel())
        kept[name] = at_least(tensor, cut([tensor], count))
    return kept


def cut(tensors: Sequence[Tensor], count: int) -> float:
    """The magnitude of the `count`-th largest of all values; infinite where none is to be kept."""
    if count <= 0:
        return math.inf
    magnitudes = torch.cat([tensor.reshape(-1).abs() for tensor in tensors])
    # Several times faster than `topk`, which sorts what it keeps.
    return float(magnitudes.kthvalue(len(magnitudes) - count + 1).values)


def at_least(tensor: Tensor, magnitude: float) -> Tensor:
    return torch.where(tensor.abs() >= magnitude, tensor, torch.zeros_like(tensor))


def by_size(round: Round) -> dict[str, float]:
    """n_i / n of the clients present; all the same where nobody has any."""
    return normalised({name: float(max(update.size, 0)) for name, update in round.updates.items()})
