"""The weighted mean of models.

    θ = Σ_i w_i θ_i / Σ_i w_i,   i in the order given

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from celm.models.state import StateDict


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> StateDict:
    """The mean of `states`, which fit one another; weights are not negative and need not sum to one.

    - Floating tensors are accumulated state by state in their own dtype, half types in float32, so that one
      running sum and one state are in memory, however many states there are.
    - Integer and boolean buffers (BatchNorm's batch counter) have no meaningful mean: they are copied from
      the state with the greatest weight, the first of equals.
    - A state of weight zero is not read at all.
    """
    if len(states) != len(weights) or not states:
        raise ValueError(f"{len(states)} states and {len(weights)} weights")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero: {list(weights)}")
    # Divided by the greatest first, as the sum of very large weights would overflow.
    greatest = max(weights)
    total = math.fsum(weight / greatest for weight in weights)
    heaviest = list(weights).index(greatest)
    sums: StateDict = {}
    dtypes: dict[str, torch.dtype] = {}
    for i, weight in enumerate(weights):
        if weight == 0:
            continue
        state = states[i]
        share = float(weight) / greatest / total
        with torch.no_grad():
            for name, tensor in state.items():
                dtypes.setdefault(name, tensor.dtype)
                if not (tensor.is_floating_point() or tensor.is_complex()):
                    if i == heaviest:
                        sums[name] = tensor.detach().clone()
                elif name in sums:
                    sums[name].add_(tensor.to(sums[name].dtype), alpha=share)
                else:
                    sums[name] = tensor.detach().to(accumulator(tensor.dtype), copy=True).mul_(share)
    # `dtypes` has the order of the names in the first state that counts.
    return {name: sums[name].to(dtype) for name, dtype in dtypes.items()}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32
