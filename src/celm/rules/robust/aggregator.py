"""The interface of aggregators: models and a rule's weights in, one model out, in place of the weighted mean."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from celm.base.registry import Configurable
from celm.models.averaging import accumulator_dtype
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class RobustAggregator(Configurable, ABC):
    """Base of aggregators: a frozen dataclass whose fields are settings (`aggregator.*`).

    With equal weights an aggregator must be the published method. Integer and boolean buffers come from the client
    with the largest weight, as in the weighted mean.
    """

    @abstractmethod
    def __call__(self, states: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
        """Combine the states of clients into one."""


def apply_coordinatewise(
    states: Sequence[StateDict], weights: Sequence[float], reduce_fn: Callable[[Tensor, Tensor], Tensor]
) -> StateDict:
    """Combine `states` by `reduce_fn`, which maps sorted values `[n, p]` and their weights `[n, p]` to `[p]`.

    As in `weighted_mean`, weights are not negative and need not sum to 1. States of weight zero are not read. Half
    types are computed in float32. A complex value is two coordinates. Integer and boolean tensors come from the first
    state of largest weight.
    """
    if len(states) != len(weights) or not states:
        raise ValueError(
            f"states and weights must be equal in number, and at least one: {len(states)} and {len(weights)}"
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero: {list(weights)}")
    largest_weight = max(weights)
    heaviest = states[list(weights).index(largest_weight)]
    weighted_states = [state for state, weight in zip(states, weights, strict=True) if weight > 0]
    relative_weights = torch.tensor(
        [weight / largest_weight for weight in weights if weight > 0], dtype=torch.float64
    )
    combined: StateDict = {}
    with torch.no_grad():
        for name, tensor in heaviest.items():
            if not (tensor.is_floating_point() or tensor.is_complex()):
                combined[name] = tensor.detach().clone()
                continue
            stacked = torch.stack(
                [state[name].detach().to(accumulator_dtype(tensor.dtype)) for state in weighted_states]
            )
            parts = torch.view_as_real(stacked) if tensor.is_complex() else stacked
            values, order = parts.reshape(len(weighted_states), -1).sort(dim=0, stable=True)
            reduced = reduce_fn(values, relative_weights.to(tensor.device)[order]).reshape(parts.shape[1:])
            combined[name] = (torch.view_as_complex(reduced) if tensor.is_complex() else reduced).to(
                tensor.dtype
            )
    return combined
