"""Many models of one architecture as a stack (one module, one state per model) and as one batched function.

    forward(x)[m, j] = f(x[m, j]; w_m)        x [M, k, *shape] -> logits [M, k, K]

`celm.core.batched_forward` chooses the fastest way to compute it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TensorFunction = Callable[[Tensor], Tensor]
_NON_SETTING_ATTRIBUTES = {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
}
"""Attributes of `nn.Module` that do not change the forward pass; all others count as settings of a model."""


@dataclass(frozen=True)
class BatchedForward:
    """The logits of a stack as a function of its inputs, and their gradient."""

    logits: TensorFunction

    def __call__(self, x: Tensor) -> Tensor:
        return self.logits(x)

    def input_gradient(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient of Σ_mj forward(x)[m, j, targets[j]] with respect to x `[M, k, *shape]`."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(True)
            return torch.autograd.grad(self(leaf).gather(2, target_index(x, targets)).sum(), leaf)[0]

    def target_logits(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the logit of `targets[j]` at every `x[m, j]`, `[M, k]`."""
        return self(x).gather(2, target_index(x, targets)).squeeze(2)


def target_index(x: Tensor, targets: Tensor) -> Tensor:
    """Return the index `[M, k, 1]` of `targets` `[k]` into logits `[M, k, K]`."""
    return targets.view(1, -1, 1).expand(x.shape[0], -1, 1)


@dataclass(frozen=True)
class ReducedPrecisionForward(BatchedForward):
    """Float32 logits, with gradients from a copy of the models in fewer bits; faster if the device supports them."""

    low_precision: BatchedForward
    dtype: torch.dtype

    def input_gradient(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.low_precision.input_gradient(x.to(self.dtype), targets).to(x.dtype)


@dataclass(frozen=True)
class ModelStack:
    """M models of one architecture: a module, and the parameters and buffers of each model.

    The states may have a part of the module's tensors. The models then share the others, which are the module's own.
    """

    module: nn.Module
    states: Sequence[Mapping[str, Tensor]]

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, part: slice) -> ModelStack:
        return ModelStack(self.module, self.states[part])

    def to(self, dtype: torch.dtype) -> ModelStack:
        """Convert every floating-point tensor to `dtype`; shared tensors are converted in a copy of the module."""
        shared = self._shared_tensors(self.states[0]).values()
        converts_module = any(tensor.is_floating_point() and tensor.dtype != dtype for tensor in shared)
        return ModelStack(
            copy.deepcopy(self.module).to(dtype) if converts_module else self.module,
            [
                {
                    name: tensor.to(dtype) if tensor.is_floating_point() else tensor
                    for name, tensor in state.items()
                }
                for state in self.states
            ],
        )

    def bytes_per_model(self) -> int:
        """Return the bytes of one model, including the tensors that it shares with the others."""
        state = self.states[0]  # once, because states may be read on access
        tensors = (*state.values(), *self._shared_tensors(state).values())
        return sum(tensor.nbytes for tensor in tensors)

    def stacked_tensor(self, name: str) -> Tensor:
        """Return the tensor `name` of all models, `[M, ...]`."""
        if name not in self.states[0]:
            shared = self._shared_tensors(self.states[0])[name]
            return shared.expand(len(self), *shared.shape)
        return torch.stack([state[name].detach() for state in self.states])

    def _shared_tensors(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parameters and persistent buffers that are not in `state`."""
        return {
            name: tensor
            for name, tensor in self.module.state_dict().items()
            if name not in state and isinstance(tensor, Tensor)
        }

    def tensor_names(self) -> list[str]:
        """Return the names of the parameters and buffers that the states provide, tied tensors once.

        `functional_call` requires tied tensors once. The module provides tensors that are missing from the states,
        such as non-persistent buffers.
        """
        tensors = (*self.module.named_parameters(), *self.module.named_buffers())
        return [name for name, _ in tensors if name in self.states[0]]


def group_by_architecture(models: Sequence[nn.Module]) -> list[ModelStack]:
    """Stack neighbouring models that have the same architecture."""
    stacks: list[ModelStack] = []
    signature: object = None
    for model in models:
        # A tied tensor appears under each of its names, as in a state dict.
        state = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        current_signature = _architecture_signature(model)
        if stacks and _same_architecture(current_signature, signature):
            stacks[-1] = ModelStack(stacks[-1].module, [*stacks[-1].states, state])
        else:
            stacks.append(ModelStack(model, [state]))
        signature = current_signature
    return stacks


def _architecture_signature(model: nn.Module) -> object:
    """Return structure, shapes and settings: models that agree in them are one function of their parameters."""
    settings = [
        (
            name,
            type(part),
            {key: value for key, value in vars(part).items() if key not in _NON_SETTING_ATTRIBUTES},
        )
        for name, part in model.named_modules()
    ]
    tensors = (*model.named_parameters(), *model.named_buffers())
    shapes = [(name, tensor.shape, tensor.dtype, tensor.device) for name, tensor in tensors]
    return settings, shapes


def _same_architecture(first: object, second: object) -> bool:
    """Return True only if two signatures are certainly equal. A wrong False costs time; a wrong True, correctness."""
    try:
        return bool(first == second)
    except Exception:  # a setting may be any object, such as a tensor, whose comparison is not a bool
        return False


def extract_logits(output: Any) -> Tensor:
    """Return the logits in a model's output: a tensor, or an object or mapping with `logits`."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise TypeError(f"a model must return logits, not {type(output).__name__}")
    return logits


def has_hooks(module: nn.Module) -> bool:
    """Return whether any layer has a hook; vmap would ignore hooks that change gradients."""
    hook_attributes = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, kind) for part in module.modules() for kind in hook_attributes)
