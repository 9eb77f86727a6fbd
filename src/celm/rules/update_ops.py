"""Operations on client updates that several rules share: differences, norms, averages, largest values.

Only parameters have a direction; buffers are averaged unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from celm.core.weights import normalise_weights
from celm.models.state_dict import StateDict
from celm.models.state_ops import cosine, l2_norm
from celm.rules.messages import RoundData
from celm.rules.rule import ServerContext


def parameter_names(context: ServerContext) -> tuple[str, ...]:
    """Return the names of the exchanged parameters, with all names of tied ones; other tensors are buffers."""
    names = dict(context.module.named_parameters(remove_duplicate=False))
    exchanged = names if context.exchanged is None else set(context.exchanged)
    return tuple(name for name in names if name in exchanged)


def client_delta(round: RoundData, client: str, names: Iterable[str]) -> StateDict:
    """Return Δ_i of the named tensors; differences beyond the range of their type are clamped to it."""
    uploaded, received = round.updates[client].model, round.messages[client].model
    return {name: torch.nan_to_num(uploaded[name] - received[name]) for name in names}


def rescale_norm(delta: StateDict, target_norm: float, lengthen: bool) -> StateDict:
    """Scale the update to norm `target_norm`; 0 means unchanged, and shorter updates change only if `lengthen`."""
    delta_norm = l2_norm(delta) + 1e-7
    if target_norm == 0 or (not lengthen and delta_norm <= target_norm):
        return delta
    return {name: tensor * (target_norm / delta_norm) for name, tensor in delta.items()}


def average_deltas(
    round: RoundData, deltas: Mapping[str, StateDict], weights: Mapping[str, float]
) -> StateDict:
    """Return the average of the clients' parameter changes, with the average of their buffer values."""
    tensors = [{**round.updates[name].model, **delta} for name, delta in deltas.items()]
    return round.average(tensors, [weights[name] for name in deltas])


def finite_cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors; 0 if it is not finite."""
    value = cosine(a, b)
    return value if math.isfinite(value) else 0.0


def top_fraction(delta: Mapping[str, Tensor], fraction: float) -> StateDict:
    """Keep the ⌈fraction · size⌉ largest values of each tensor by magnitude, with ties; set the others to zero."""
    if fraction >= 1:
        return dict(delta)
    sparse: StateDict = {}
    for name, tensor in delta.items():
        count = min(math.ceil(fraction * tensor.numel()), tensor.numel())
        sparse[name] = zero_below(tensor, kth_largest_magnitude([tensor], count))
    return sparse


def kth_largest_magnitude(tensors: Sequence[Tensor], count: int) -> float:
    """Return the magnitude of the `count`-th largest of all values; infinite if `count` is 0."""
    if count <= 0:
        return math.inf
    magnitudes = torch.cat([tensor.reshape(-1).abs() for tensor in tensors])
    # Several times faster than `topk`, which also sorts.
    return float(magnitudes.kthvalue(len(magnitudes) - count + 1).values)


def zero_below(tensor: Tensor, threshold: float) -> Tensor:
    """Set values of magnitude below `threshold` to zero."""
    return torch.where(tensor.abs() >= threshold, tensor, torch.zeros_like(tensor))


def size_weights(round: RoundData) -> dict[str, float]:
    """Return n_i / n of the present clients; uniform if all report 0 samples."""
    return normalise_weights(
        {name: float(max(update.num_examples, 0)) for name, update in round.updates.items()}
    )
