"""Models as vectors: differences, sums and lengths of state dicts.

Only floating tensors take part; integer and boolean buffers have no direction. Order is that of the names in
the reference, so that equal models give equal vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from celm.models.state import StateDict


def difference(state: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> StateDict:
    """`state - reference`, tensor by tensor."""
    return {name: state[name] - tensor for name, tensor in reference.items() if tensor.is_floating_point()}


def moved(reference: Mapping[str, Tensor], step: Mapping[str, Tensor], scale: float = 1.0) -> StateDict:
    """`reference + scale * step`; tensors that `step` does not name stay as they are."""
    return {
        name: torch.add(tensor, step[name], alpha=scale) if name in step else tensor
        for name, tensor in reference.items()
    }


def flat(step: Mapping[str, Tensor]) -> Tensor:
    """All values in one vector `[P]`."""
    return torch.cat([tensor.reshape(-1) for tensor in step.values()])


def length(step: Mapping[str, Tensor]) -> float:
    """The Euclidean norm over all values, in float64."""
    return float(sum(tensor.double().square().sum() for tensor in step.values()) ** 0.5)


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two vectors, in float64; 0 where one of them is zero."""
    a, b = a.double(), b.double()
    lengths = a.norm() * b.norm()
    return float(a @ b / lengths) if lengths > 0 else 0.0
