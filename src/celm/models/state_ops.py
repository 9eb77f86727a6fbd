"""State dicts as vectors: differences, scaled sums, norms and cosines.

Only floating tensors take part: integer and boolean buffers have no direction. The order of the values is that of the
names in the reference, so equal models give equal vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from celm.models.state_dict import StateDict


def difference(state: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> StateDict:
    """Return `state - reference` for each floating tensor of `reference`."""
    return {name: state[name] - tensor for name, tensor in reference.items() if tensor.is_floating_point()}


def add_scaled(reference: Mapping[str, Tensor], delta: Mapping[str, Tensor], scale: float = 1.0) -> StateDict:
    """Return `reference + scale * delta`; tensors that are not in `delta` stay unchanged."""
    return {
        name: torch.add(tensor, delta[name], alpha=scale) if name in delta else tensor
        for name, tensor in reference.items()
    }


def flatten(delta: Mapping[str, Tensor]) -> Tensor:
    """Return all values in one vector `[P]`."""
    return torch.cat([tensor.reshape(-1) for tensor in delta.values()])


def l2_norm(delta: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm over all values, computed in float64."""
    return float(sum(tensor.double().square().sum() for tensor in delta.values()) ** 0.5)


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of the angle between two vectors, computed in float64; 0 if it is not defined or not finite."""
    a, b = a.double(), b.double()
    norms = a.norm() * b.norm()
    value = float(a @ b / norms) if norms > 0 else 0.0
    return value if math.isfinite(value) else 0.0
