"""Many models of one architecture: a module and a state for each, and what is asked of them as one function.

    forward(x)[m, j] = f(x[m, j]; w_m)        x [M, k, *shape] -> logits [M, k, K]

`celm.method.forward` finds the fastest way to compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Forward:
    """The logits of a stack as a function of its inputs, and how they change with them."""

    logits: Function

    def __call__(self, x: Tensor) -> Tensor:
        return self.logits(x)

    def slope(self, x: Tensor, targets: Tensor) -> Tensor:
        """The gradient of Σ_mj forward(x)[m, j, targets[j]] by x `[M, k, *shape]`."""
        with torch.enable_grad():
            followed = x.detach().requires_grad_(True)
            return torch.autograd.grad(self(followed).gather(2, places(x, targets)).sum(), followed)[0]

    def reached(self, x: Tensor, targets: Tensor) -> Tensor:
        """How high `targets[j]` has risen at every `x[m, j]`, `[M, k]`."""
        return self(x).gather(2, places(x, targets)).squeeze(2)


def places(x: Tensor, targets: Tensor) -> Tensor:
    """Where in logits `[M, k, K]` those of `targets` `[k]` are, `[M, k, 1]`."""
    return targets.view(1, -1, 1).expand(x.shape[0], -1, 1)


@dataclass(frozen=True)
class Rounded(Forward):
    """Exact logits, with slopes from a copy of the models in fewer bits: faster where the device computes so."""

    rough: Forward
    dtype: torch.dtype

    def slope(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.rough.slope(x.to(self.dtype), targets).to(x.dtype)


@dataclass(frozen=True)
class Stack:
    """M models that share one architecture: a module, and the parameters and buffers of each."""

    module: nn.Module
    states: Sequence[Mapping[str, Tensor]]

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, part: slice) -> Stack:
        return Stack(self.module, self.states[part])

    def to(self, dtype: torch.dtype) -> Stack:
        """The same models with every floating tensor of that kind."""
        return Stack(
            self.module,
            [
                {
                    name: tensor.to(dtype) if tensor.is_floating_point() else tensor
                    for name, tensor in state.items()
                }
                for state in self.states
            ],
        )

    def stacked(self, name: str) -> Tensor:
        return torch.stack([state[name].detach() for state in self.states])

    def names(self) -> list[str]:
        # Tied tensors appear once here, as `functional_call` wants it; a buffer that is no part of a state dict
        # may be missing from the states, and is then the module's own.
        tensors = (*self.module.named_parameters(), *self.module.named_buffers())
        return [name for name, _ in tensors if name in self.states[0]]


def logits_of(output: Any) -> Tensor:
    """The logits tensor in what a model returns: a tensor, or an object or mapping that holds `logits`."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise TypeError(f"a model must return logits, not {type(output).__name__}")
    return found


def hooked(module: nn.Module) -> bool:
    """Whether anything is called along with the layers; vmap would pass over what changes gradients."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, kind) for part in module.modules() for kind in kinds)
