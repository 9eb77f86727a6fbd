"""The logits of a stack, every model seeing its own inputs in a single call.

Three ways with one result, fastest first:

1. `plain` (celm.method.chains): a chain of known layers (found by tracing, so a user's own `nn.Sequential` counts)
   becomes batched matrix products and grouped convolutions over the stacked parameters;
2. `mapped`: any module without hooks that `torch.func.vmap` can handle;
3. `looped`: whatever is left, one model after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from celm.method.chains import plain
from celm.method.stacking import Forward, Stack, hooked, logits_of


def forward_of(stack: Stack, shape: tuple[int, ...]) -> Forward:
    """The fastest of the three ways that works for this architecture, found with one trial call."""
    fast = plain(stack, shape)
    if fast is not None:
        return fast
    if len(stack) > 1 and not hooked(stack.module):
        like = next(iter(stack.states[0].values()))
        trial = torch.zeros(len(stack), 1, *shape, device=like.device, dtype=like.dtype)
        try:
            general = mapped(stack)
            general(trial)
        except Exception:
            # vmap refuses in many ways (data-dependent control flow, in-place updates, unsupported operators)
            # and with many types of error; a genuine fault of the model shows again in the loop.
            return looped(stack)
        return general
    return looped(stack)


def mapped(stack: Stack) -> Forward:
    tensors = {name: stack.stacked(name) for name in stack.names()}

    def one(state: dict[str, Tensor], x: Tensor) -> Tensor:
        return logits_of(functional_call(stack.module, state, (x,)))

    several: Callable[..., Tensor] = vmap(one)
    return Forward(lambda x: several(tensors, x.clone()))  # a copy, since a model may write over its input


def looped(stack: Stack) -> Forward:
    names = stack.names()
    states = [{name: state[name].detach() for name in names} for state in stack.states]

    def forward(x: Tensor) -> Tensor:
        outputs = [functional_call(stack.module, state, (x[m].clone(),)) for m, state in enumerate(states)]
        return torch.stack([logits_of(output) for output in outputs])

    return Forward(forward)
