"""SCAFFOLD by hand over three rounds, one with an absent client, and properties of its formulas."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from celm.models.averaging import weighted_mean
from celm.models.heads import trained_keys
from celm.models.state_dict import get_state, load_state
from celm.objectives.cross_entropy import Plain
from celm.objectives.scaffold import Scaffold, ScaffoldState, ServerControl
from support.local_training import (
    a_round,
    after_a_file,
    joined,
    linear,
    net,
    samples,
    slope,
    step,
    task_of,
    together,
)

SCAFFOLD = Scaffold()


def work(
    state: dict[str, Tensor], memory: Any, extras: Any, x: Tensor, y: Tensor, lr: float, steps: int
) -> tuple[dict[str, Tensor], ScaffoldState, Any]:
    """Train a client on full batches; return its model, state and extra tensors."""
    layer = linear()
    load_state(layer, state)
    task = task_of(layer, y, memory=memory, extras=extras, lr=lr)
    context = SCAFFOLD.start_round(task)
    for _ in range(steps):
        step(SCAFFOLD, task, context, x, y)
    return (
        get_state(layer),
        SCAFFOLD.next_client_state(task, context, steps),
        SCAFFOLD.extra_tensors(task, context, steps),
    )


def test_three_rounds_by_hand() -> None:
    clients = {"a": samples(5, 1), "b": samples(6, 2), "c": samples(4, 3)}
    steps = {"a": 2, "b": 3, "c": 1}
    part = SCAFFOLD.server_hook(("weight", "bias"), trained_keys(linear()))
    model = get_state(linear())
    state = part.init(model)
    memories: dict[str, ScaffoldState] = {}

    W = joined(model).copy()
    c, own = np.zeros_like(W), {name: np.zeros_like(W) for name in clients}

    for lr, present in ((0.2, "abc"), (0.1, "ac"), (0.1, "abc")):
        done = {
            name: work(
                model, memories.get(name), part.extra_tensors(state), *clients[name], lr=lr, steps=steps[name]
            )
            for name in present
        }
        change, ended = np.zeros_like(W), []
        for name in present:
            w = W.copy()
            for _ in range(steps[name]):
                w = w - lr * (slope(w, *clients[name]) - own[name] + c)
            new = own[name] - c + (W - w) / (steps[name] * lr)
            change += (new - own[name]) / 3  # three clients, present or not
            own[name] = new
            ended.append(w)
            np.testing.assert_allclose(joined(done[name][0]), w, atol=1e-12)
            np.testing.assert_allclose(joined(done[name][1].control_by_name), new, atol=1e-12)
        c, W = c + change, np.mean(ended, axis=0)

        sent = {name: result[2] for name, result in done.items()}
        merged = weighted_mean([result[0] for result in done.values()], [1.0] * len(done))
        returned = {name: result[0] for name, result in done.items()}
        state = part.update_state(state, a_round(dict.fromkeys(present, model), returned, sent), merged, 3)
        memories |= {name: result[1] for name, result in done.items()}
        model = part.postprocess(state, merged)
        np.testing.assert_allclose(joined(state.control_by_name), c, atol=1e-12)
        np.testing.assert_allclose(joined(model), W, atol=1e-12)


def test_the_first_round_is_plain_training() -> None:
    first, (x, y) = net(), samples()
    second = copy.deepcopy(first)
    for module, objective in ((first, SCAFFOLD), (second, Plain())):
        task = task_of(module, y)
        context = objective.start_round(task)
        for _ in range(3):
            step(objective, task, context, x, y)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_correction_is_a_linear_term_of_the_loss() -> None:
    layer, (x, y) = linear(), samples()
    own = {name: torch.randn_like(tensor) for name, tensor in layer.state_dict().items()}
    shared = {f"control/{name}": torch.randn_like(tensor) for name, tensor in layer.state_dict().items()}
    task = task_of(layer, y, memory=ScaffoldState(own), extras=shared)
    found = SCAFFOLD.gradients(task, SCAFFOLD.start_round(task), x, y)
    loss = torch.nn.functional.cross_entropy(layer(x), y)
    for name, parameter in layer.named_parameters():
        loss = loss + ((shared[f"control/{name}"] - own[name]) * parameter).sum()
    for a, b in zip(found, torch.autograd.grad(loss, list(layer.parameters())), strict=True):
        torch.testing.assert_close(a, b)


@settings(deadline=None, max_examples=20)
@given(steps=st.integers(1, 4), lr=st.floats(0.01, 0.5), seed=st.integers(0, 99))
def test_the_new_control_is_the_mean_gradient_on_the_way(steps: int, lr: float, seed: int) -> None:
    layer, (x, y) = linear(seed), samples(5, seed)
    draw = torch.Generator().manual_seed(seed)
    noise = {
        name: torch.randn(t.shape, generator=draw, dtype=t.dtype) for name, t in layer.state_dict().items()
    }
    extras = {f"control/{name}": -0.5 * tensor for name, tensor in noise.items()}
    task = task_of(layer, y, memory=ScaffoldState(noise), extras=extras, lr=lr)
    context = SCAFFOLD.start_round(task)
    seen = []
    for _ in range(steps):
        seen.append(slope(joined(layer), x, y))
        step(SCAFFOLD, task, context, x, y)
    new = SCAFFOLD.next_client_state(task, context, steps).control_by_name
    np.testing.assert_allclose(joined(new), np.mean(seen, axis=0), atol=1e-8)


def test_a_client_without_samples_keeps_its_control_and_sends_no_change() -> None:
    layer = linear()
    own = {name: torch.ones_like(tensor) for name, tensor in layer.state_dict().items()}
    task = task_of(layer, torch.empty(0, dtype=torch.long), memory=ScaffoldState(own))
    context = SCAFFOLD.start_round(task)
    assert all(
        torch.equal(SCAFFOLD.next_client_state(task, context, 0).control_by_name[name], own[name])
        for name in own
    )
    assert not any(tensor.any() for tensor in SCAFFOLD.extra_tensors(task, context, 0).values())


def test_only_trained_parameters_have_controls() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    module[0].bias.requires_grad_(False)
    part = SCAFFOLD.server_hook((), trained_keys(module))
    assert list(part.init(get_state(module)).control_by_name) == ["0.weight", "1.weight", "1.bias"]


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"control/weight": torch.full((3, 4), float("nan"))},
        {"control/weight": torch.ones(2, 2)},
        {"control/other": torch.ones(3, 4)},
        {"something": torch.ones(3, 4)},
    ],
)
def test_extra_tensors_that_do_not_fit_change_nothing(sent: dict[str, Tensor]) -> None:
    part, model = ServerControl(("weight", "bias")), get_state(linear())
    state = part.init(model)
    after = part.update_state(state, a_round({"a": model}, {"a": model}, {"a": sent}), model, 2)
    assert not any(tensor.any() for tensor in after.control_by_name.values())


def test_controls_survive_a_file(tmp_path: Path) -> None:
    control = ScaffoldState({"a.weight": torch.randn(2, 3), "a/b": torch.randn(2)})
    again = after_a_file(control, ScaffoldState, tmp_path)
    assert isinstance(again, ScaffoldState)
    assert all(
        torch.equal(again.control_by_name[name], tensor) for name, tensor in control.control_by_name.items()
    )


def test_gradients_follow_the_order_of_parameters() -> None:
    layer, (x, y) = linear(), samples()
    task = task_of(layer, y)
    found = together(SCAFFOLD.gradients(task, SCAFFOLD.start_round(task), x, y))
    np.testing.assert_allclose(found, slope(joined(layer), x, y), atol=1e-12)
