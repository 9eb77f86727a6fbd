"""Passes through a network that leave it as it was: frozen copies, moved parameters, kept buffers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from celm.models.state import load_state


def frozen(module: nn.Module, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A copy in eval mode that does not train, loaded with `state` where given."""
    still = copy.deepcopy(module).eval().requires_grad_(False)
    if state is not None:
        load_state(still, state)
    return still


@contextmanager
def moved_by(parameters: Sequence[nn.Parameter], steps: Sequence[Tensor]) -> Iterator[None]:
    """The parameters at `w + step`; afterwards at `w` again, to the bit."""
    with torch.no_grad():
        kept = [parameter.clone() for parameter in parameters]
        torch._foreach_add_(list(parameters), list(steps))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), kept)


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """A pass after which BatchNorm's statistics, and all other buffers, are what they were before."""
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
