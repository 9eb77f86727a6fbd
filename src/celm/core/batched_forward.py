"""The logits of a stack of models in one call, in which each model has its own inputs.

There are three ways with the same result, fastest first:

1. `layerwise_forward` (celm.core.batched_layers): a chain of supported layers, such as an `nn.Sequential`, becomes
   batched matrix products and grouped convolutions over the stacked parameters.
2. `vmap_forward`: any module without hooks that `torch.func.vmap` supports.
3. `loop_forward`: all other modules, one model after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from celm.core.batched_layers import layerwise_forward
from celm.core.model_stack import BatchedForward, ModelStack, extract_logits, has_hooks


def make_forward(stack: ModelStack, shape: tuple[int, ...]) -> BatchedForward:
    """Return the fastest forward that works for this architecture, tested with one trial call."""
    layerwise = layerwise_forward(stack, shape)
    if layerwise is not None:
        return layerwise
    if len(stack) > 1 and not has_hooks(stack.module):
        reference = next(iter(stack.states[0].values()))
        trial = torch.zeros(len(stack), 1, *shape, device=reference.device, dtype=reference.dtype)
        try:
            vectorised = vmap_forward(stack)
            vectorised(trial)
        except Exception:
            # vmap fails with many types of error (data-dependent control flow, in-place updates, unsupported
            # operators). A fault of the model itself appears again in the loop.
            return loop_forward(stack)
        return vectorised
    return loop_forward(stack)


def vmap_forward(stack: ModelStack) -> BatchedForward:
    """Return the stack as one vectorised call of its module."""
    tensors = {name: stack.stacked_tensor(name) for name in stack.tensor_names()}

    def call_model(state: dict[str, Tensor], x: Tensor) -> Tensor:
        return extract_logits(functional_call(stack.module, state, (x,)))

    call_models: Callable[..., Tensor] = vmap(call_model)
    # The copy protects the inputs from a model that overwrites them.
    return BatchedForward(lambda x: call_models(tensors, x.clone()))


def loop_forward(stack: ModelStack) -> BatchedForward:
    """Return the stack as one call of its module per model."""
    names = stack.tensor_names()
    states = [{name: state[name].detach() for name in names} for state in stack.states]

    def forward(x: Tensor) -> Tensor:
        outputs = [functional_call(stack.module, state, (x[m].clone(),)) for m, state in enumerate(states)]
        return torch.stack([extract_logits(output) for output in outputs])

    return BatchedForward(forward)
