"""Gradients are those of autograd, bit for bit; other models than ReLU MLPs are left to autograd."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from celm.objectives.cross_entropy import Plain
from celm.objectives.objective import LocalTask
from celm.objectives.relu_mlp_gradients import as_relu_mlp
from celm.rules.messages import ServerMessage


def network(widths: list[int], flatten: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(1, 70), st.integers(0, 99))
def test_gradients_are_those_of_autograd(widths: list[int], batch: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = network(widths)
    inputs, labels = torch.randn(batch, 1, widths[0]), torch.randint(0, widths[-1], (batch,))
    parameters = list(module.parameters())
    result = as_relu_mlp(module, parameters)
    assert result is not None
    expected = torch.autograd.grad(F.cross_entropy(module(inputs), labels), parameters)
    ours = result.gradients(inputs, labels)
    assert len(ours) == len(expected)
    for mine, theirs in zip(ours, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_at_the_papers_size_too() -> None:
    torch.manual_seed(0)
    module = network([784, 128, 64, 10])
    inputs, labels = torch.randn(128, 784), torch.randint(0, 10, (128,))
    parameters = list(module.parameters())
    result = as_relu_mlp(module, parameters)
    assert result is not None
    expected = torch.autograd.grad(F.cross_entropy(module(inputs), labels), parameters)
    assert all(map(torch.equal, result.gradients(inputs, labels), expected))


def tied() -> nn.Module:
    module = network([3, 3, 3])
    module[3].weight = module[1].weight
    return module


def hooked() -> nn.Module:
    module = network([3, 3, 3])
    module[1].register_forward_hook(lambda *_: None)
    return module


class Own(nn.Sequential):
    """A subclass, whose forward may be anything."""


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)),
        nn.Conv2d(1, 2, 3),
        tied(),
        hooked(),
        Own(nn.Linear(4, 3)),
    ],
)
def test_other_models_are_left_to_autograd(module: nn.Module) -> None:
    assert as_relu_mlp(module, list(module.parameters())) is None


def test_a_frozen_layer_is_left_to_autograd() -> None:
    module = network([4, 3, 2])
    assert as_relu_mlp(module, list(module.parameters())[2:]) is None


def test_an_overridden_loss_is_used() -> None:
    @dataclass(frozen=True)
    class Doubled(Plain):
        def loss(
            self, task: LocalTask[None], context: Any, inputs: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            return 2 * super().loss(task, context, inputs, labels)

    module = network([4, 3, 2])
    labels = torch.tensor([0, 1, 1])
    task: LocalTask[None] = LocalTask(
        module, list(module.parameters()), "3", ServerMessage({}), labels, 2, 0.1, None
    )
    inputs = torch.randn(3, 4)
    once = Plain().gradients(task, None, inputs, labels)
    twice = Doubled().gradients(task, None, inputs, labels)
    for one, two in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * one, two)


def test_a_step_makes_no_more_products_than_needed_and_builds_no_graph(kernels: Any) -> None:
    module = network([30, 20, 10, 5])
    chain = as_relu_mlp(module, list(module.parameters()))
    assert chain is not None
    inputs, labels = torch.randn(16, 30), torch.randint(5, (16,))
    with kernels() as counted:
        result = chain.gradients(inputs, labels)
    # Forward, and back to the weights, for each of the 3 layers; back to the inputs for all but the first.
    assert (counted.calls["addmm"], counted.calls["mm"]) == (3, 3 + 2)
    assert counted.calls["clone"] == counted.calls["copy_"] == 0
    assert counted.largest == 30 * 20
    assert not any(gradient.requires_grad for gradient in result)
