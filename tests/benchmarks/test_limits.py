"""The work that the limit counts is the work that PyTorch does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from celm.models import build_model

MODELS = {
    "paper's mlp": (lambda: build_model("mlp", {}, (1, 28, 28), 10), (1, 28, 28)),
    "linear": (lambda: build_model("mlp", {"widths": []}, (1, 8, 8), 10), (1, 8, 8)),
    "paper's cnn": (lambda: build_model("cnn", {}, (3, 32, 32), 10), (3, 32, 32)),
    "strides and holes": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, dilation=2),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, 3),
        ),
        (4, 16, 16),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_a_step_are_those_that_torch_counts(name: str) -> None:
    from limits import flops_per_sample, layers_of

    build, shape = MODELS[name]
    model, batch = build(), 7
    with FlopCounterMode(display=False) as counter:
        loss = nn.functional.cross_entropy(
            model(torch.randn(batch, *shape)), torch.zeros(batch, dtype=torch.long)
        )
        loss.backward()
    assert batch * flops_per_sample(layers_of(model, shape)) == counter.get_total_flops()


@pytest.mark.parametrize("name", MODELS)
def test_the_operations_that_are_timed_do_that_work(name: str) -> None:
    from limits import flops_per_sample, layers_of

    build, shape = MODELS[name]
    layers, batch = layers_of(build(), shape), 7
    operations = [operation for layer in layers for operation in layer.operations(batch)]
    with FlopCounterMode(display=False) as counter:
        for operation in operations:
            operation()
    assert batch * flops_per_sample(layers) == counter.get_total_flops()


def test_looking_at_a_model_leaves_no_hooks_in_it() -> None:
    from limits import layers_of

    model = build_model("mlp", {}, (1, 8, 8), 10)
    assert [layer.first for layer in layers_of(model, (1, 8, 8))] == [True, False, False]
    assert not any(part._forward_hooks for part in model.modules())


@pytest.mark.slow
def test_rates_are_those_of_all_workers_together() -> None:
    from limits import layers_of, rates

    layers = layers_of(build_model("mlp", {}, (1, 8, 8), 10), (1, 8, 8))
    found = rates(layers, batch=16, workers=2, window=0.05)
    assert set(found) == {"square", "layers"}
    assert all(value > 0 for value in found.values())
