"""The coordinate-wise median, weighted.

Of each coordinate, with its values sorted and W_k the weight of the first k of them (all together 1):

    median = (x_a + x_b) / 2        a the first with W_a ≥ 1/2,  b the first with W_b > 1/2

a and b differ only where the weights split in half exactly; with equal weights this is `numpy.median`, the mean
of the two middle values for even counts. Values far off have no say as long as they hold less than half of the
*weight*. Clients of weight zero do not count; integer and boolean buffers come from the heaviest client.

Reference: Yin, Chen, Ramchandran & Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from celm.models.averaging import accumulator
from celm.models.state import StateDict
from celm.rules.robust.combine import Combine

ROUNDING = 1e-9
"""How far from 1/2 a sum of weights may be and still be a half."""


@dataclass(frozen=True)
class Median(Combine):
    """The weighted median of every coordinate."""

    def __call__(self, states: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
        return coordinatewise(states, weights, middle)


def middle(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted median `[p]` of `values [n, p]`, sorted along n, each with its own of `weights [n, p]`."""
    held = weights.cumsum(dim=0) / weights.sum(dim=0)
    lower = (held < 0.5 - ROUNDING).sum(dim=0, keepdim=True)
    upper = (held <= 0.5 + ROUNDING).sum(dim=0, keepdim=True)
    # Halved first: the sum of two finite values may be infinite.
    return (values.gather(0, lower) / 2 + values.gather(0, upper) / 2).squeeze(0)


def coordinatewise(
    states: Sequence[StateDict], weights: Sequence[float], combine: Callable[[Tensor, Tensor], Tensor]
) -> StateDict:
    """One state from `states`: `combine` gets sorted values `[n, p]` and their weights `[n, p]` and gives `[p]`.

    As in `weighted_mean`, weights are not negative and need not sum to 1, states of weight zero are not read,
    half types are handled in float32, and what is neither floating nor complex comes from the heaviest state,
    the first of equals. Complex values are two coordinates.
    """
    if len(states) != len(weights) or not states:
        raise ValueError(f"{len(states)} states and {len(weights)} weights")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero: {list(weights)}")
    greatest = max(weights)
    heaviest = states[list(weights).index(greatest)]
    counted = [state for state, weight in zip(states, weights, strict=True) if weight > 0]
    share = torch.tensor([weight / greatest for weight in weights if weight > 0], dtype=torch.float64)
    merged: StateDict = {}
    with torch.no_grad():
        for name, tensor in heaviest.items():
            if not (tensor.is_floating_point() or tensor.is_complex()):
                merged[name] = tensor.detach().clone()
                continue
            stacked = torch.stack([state[name].detach().to(accumulator(tensor.dtype)) for state in counted])
            parts = torch.view_as_real(stacked) if tensor.is_complex() else stacked
            values, order = parts.reshape(len(counted), -1).sort(dim=0, stable=True)
            found = combine(values, share.to(tensor.device)[order]).reshape(parts.shape[1:])
            merged[name] = (torch.view_as_complex(found) if tensor.is_complex() else found).to(tensor.dtype)
    return merged
