"""Operations that several objectives share: lists of tensors as one vector, and passes that leave a network unchanged.

A list holds one tensor per parameter, in the order of `LocalTask.parameters`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from celm.models.state_dict import load_state


def add_scaled_lists(tensors: Sequence[Tensor], others: Sequence[Tensor], scale: float = 1.0) -> list[Tensor]:
    """Return `tensors + scale * others`."""
    return list(torch._foreach_add(list(tensors), list(others), alpha=scale))


def list_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm over all values."""
    total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return total


def clip_list_norm(tensors: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Scale the list down to norm `max_norm` if it is longer; a `max_norm` of 0 means no bound."""
    if not max_norm:
        return list(tensors)
    factor = (max_norm / (list_norm(tensors) + 1e-6)).clamp(max=1)
    return [tensor * factor for tensor in tensors]


def frozen_copy(module: nn.Module, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return a copy in eval mode that does not train, loaded with `state` if given."""
    frozen_module = copy.deepcopy(module).eval().requires_grad_(False)
    if state is not None:
        load_state(frozen_module, state)
    return frozen_module


@contextmanager
def perturbed(parameters: Sequence[nn.Parameter], steps: Sequence[Tensor]) -> Iterator[None]:
    """Move the parameters to `w + step`; restore `w` to the bit on exit."""
    with torch.no_grad():
        originals = [parameter.clone() for parameter in parameters]
        torch._foreach_add_(list(parameters), list(steps))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), originals)


@contextmanager
def preserved_buffers(module: nn.Module) -> Iterator[None]:
    """Restore BatchNorm's statistics and all other buffers on exit."""
    saved = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)
