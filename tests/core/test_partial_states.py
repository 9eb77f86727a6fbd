"""Stacks whose states have a part of the tensors: the models share the module's own others."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from celm.core.batched_forward import loop_forward, make_forward, vmap_forward
from celm.core.idle_detection import relative_movement
from celm.core.model_stack import ModelStack
from celm.core.probe import models_per_batch, probe


class Branches(nn.Module):
    """Not a chain of layers, so that it is computed by vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.left(x)) * self.right(x))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 3)
    )


MODELS = {"mlp": (mlp, (8,)), "convolutions": (convolutions, (2, 4, 4)), "branches": (Branches, (8,))}


def stacks(name: str, part: str) -> tuple[ModelStack, ModelStack, tuple[int, ...]]:
    """Return three models that differ in the tensors of one part, with partial and with complete states."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    module = build()
    sent = [key for key in module.state_dict() if key.startswith(part)]
    states = [
        {key: torch.randn_like(module.state_dict()[key]) for key in sent if "num_batches" not in key}
        for _ in range(3)
    ]
    for state in states:
        state.update({key: value.abs() for key, value in state.items() if "running_var" in key})
    complete = [{**module.state_dict(), **state} for state in states]
    return ModelStack(module, states), ModelStack(copy.deepcopy(module), complete), shape


CASES = [
    ("mlp", "0."), ("mlp", "2."), ("convolutions", "0."), ("convolutions", "1."), ("convolutions", "3."),
    ("convolutions", "5."), ("branches", "left"), ("branches", "head"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "part"), CASES)
def test_every_forward_uses_the_modules_own_tensors(name: str, part: str) -> None:
    partial, complete, shape = stacks(name, part)
    x = torch.randn(3, 4, *shape)
    for stack in (partial, complete):
        stack.module.eval().requires_grad_(False)
    expected = loop_forward(complete)(x)
    for make in (loop_forward, vmap_forward, lambda stack: make_forward(stack, shape)):
        torch.testing.assert_close(make(partial)(x), expected)


@pytest.mark.parametrize(("name", "part"), CASES)
def test_probes_and_movement_are_those_of_complete_models(name: str, part: str) -> None:
    partial, complete, shape = stacks(name, part)
    results = [probe(stack, shape, 3, steps=5) for stack in (partial, complete)]
    torch.testing.assert_close(results[0].logits, results[1].logits)
    torch.testing.assert_close(results[0].inputs, results[1].inputs)
    assert models_per_batch(partial) == models_per_batch(complete)
    inputs = results[0].inputs[0]
    movement = [
        relative_movement(ModelStack(stack.module, [stack.states[0]] * 3), stack, inputs, seed=1)
        for stack in (partial, complete)
    ]
    torch.testing.assert_close(movement[0], movement[1], rtol=1e-4, atol=1e-4, equal_nan=True)


def test_another_precision_holds_for_shared_tensors_too() -> None:
    partial, complete, shape = stacks("branches", "head")
    x = torch.randn(3, 4, *shape, dtype=torch.float64)
    converted = partial.to(torch.float64)
    torch.testing.assert_close(loop_forward(converted)(x), loop_forward(complete.to(torch.float64))(x))
    assert converted.module is not partial.module
    assert next(partial.module.parameters()).dtype is torch.float32
    assert complete.to(torch.float64).module is complete.module
    assert partial.to(torch.float32).module is partial.module
