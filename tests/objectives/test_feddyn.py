"""FedDyn by hand over three rounds, and its fixed point on quadratics solved exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from celm.models.averaging import weighted_mean
from celm.models.heads import trained_keys
from celm.models.state_dict import get_state, load_state
from celm.objectives.feddyn import FedDyn, FedDynState, ServerDrift
from celm.objectives.objective import LocalTask
from support.local_training import (
    a_round,
    after_a_file,
    joined,
    linear,
    samples,
    slope,
    step,
    task_of,
    together,
)


def test_three_rounds_by_hand() -> None:
    alpha, lr, objective = 0.3, 0.2, FedDyn(alpha=0.3, clip=0)
    clients = {"a": samples(5, 1), "b": samples(6, 2), "c": samples(4, 3)}
    part = objective.server_hook(("weight", "bias"), trained_keys(linear()))
    model = get_state(linear())
    state = part.init(model)
    memories: dict[str, FedDynState] = {}
    average = joined(model).copy()
    h = {name: np.zeros_like(average) for name in clients}

    for present in ("abc", "bc", "abc"):
        start = part.broadcast_model(state, model)
        delivered, returned = dict.fromkeys(present, start), {}
        W = average + sum(h.values()) / 3
        np.testing.assert_allclose(joined(start), W, atol=1e-12)
        ended = []
        for name in present:
            layer = linear()
            load_state(layer, start)
            task = task_of(layer, clients[name][1], memory=memories.get(name), lr=lr)
            context = objective.start_round(task)
            w = W.copy()
            for _ in range(2):
                step(objective, task, context, *clients[name])
                w = w - lr * (slope(w, *clients[name]) + alpha * (h[name] + w - W))
            memories[name] = objective.next_client_state(task, context, 2)
            returned[name] = get_state(layer)
            h[name] = h[name] + w - W
            ended.append(w)
            np.testing.assert_allclose(joined(layer), w, atol=1e-12)
            np.testing.assert_allclose(joined(memories[name].drift_by_name), h[name], atol=1e-12)
        average = np.mean(ended, axis=0)
        merged = weighted_mean(list(returned.values()), [1.0] * len(returned))
        state = part.update_state(state, a_round(delivered, returned), merged, 3)
        model = part.postprocess(state, merged)
        np.testing.assert_allclose(joined(model), average, atol=1e-12)  # judged without h
        np.testing.assert_allclose(joined(state.drift_by_name), sum(h.values()) / 3, atol=1e-12)


class Point(nn.Module):
    """One parameter, named as the head so that it can be a task."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1, bias=False).double()


@dataclass(frozen=True)
class Quadratic(FedDyn):
    """f_i(w) = curvature/2 ||w - target||²; the batch is (target, curvature)."""

    def loss(self, task: LocalTask[Any], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        return labels / 2 * (task.parameters[0] - inputs).square().sum()


TARGETS = {"a": torch.tensor([[1.0, 0.0]]).double(), "b": torch.tensor([[-2.0, 5.0]]).double()}
CURVATURES = {"a": torch.tensor(1.0).double(), "b": torch.tensor(4.0).double()}


def test_the_fixed_point_is_the_optimum_of_the_sum_although_clients_solve_exactly() -> None:
    """Averaging exact local optima ends at their mean; FedDyn ends where the gradients sum to zero."""
    objective, module = Quadratic(alpha=1.0, clip=0), Point()
    part = ServerDrift(("head.weight",))
    model = get_state(module)
    state, memories = part.init(model), dict[str, FedDynState]()
    for _ in range(60):
        start = part.broadcast_model(state, model)
        returned = {}
        for name in TARGETS:
            load_state(module, start)
            task = task_of(module, torch.zeros(1), classes=1, memory=memories.get(name))
            context = objective.start_round(task)
            # One Newton step is the exact minimum: the curvature is that of f_i plus alpha.
            (gradient,) = objective.gradients(task, context, TARGETS[name], CURVATURES[name])
            with torch.no_grad():
                task.parameters[0] -= gradient / (CURVATURES[name] + 1.0)
            memories[name] = objective.next_client_state(task, context, 1)
            returned[name] = get_state(module)
        merged = weighted_mean(list(returned.values()), [1.0, 1.0])
        state = part.update_state(state, a_round(dict.fromkeys(TARGETS, start), returned), merged, 2)
        model = merged
    optimum = (TARGETS["a"] + 4 * TARGETS["b"]) / 5
    torch.testing.assert_close(model["head.weight"], optimum, atol=1e-6, rtol=0)
    for name, memory in memories.items():  # h_i = -∇f_i / α
        slope_there = CURVATURES[name] * (optimum - TARGETS[name])
        torch.testing.assert_close(memory.drift_by_name["head.weight"], -slope_there, atol=1e-5, rtol=0)


def test_gradients_are_clipped_with_the_regulariser_included() -> None:
    layer, (x, y) = linear(), samples()
    memory = FedDynState({name: torch.full_like(t, 100.0) for name, t in layer.state_dict().items()})
    task = task_of(layer, y, memory=memory)
    objective = FedDyn(alpha=1.0)
    result = together(objective.gradients(task, objective.start_round(task), x, y))
    whole = slope(joined(layer), x, y) + 100
    np.testing.assert_allclose(result, 10 * whole / np.linalg.norm(whole), rtol=1e-6)


def test_buffers_are_not_corrected() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    part = FedDyn().server_hook((), trained_keys(module))
    start = get_state(module)
    ended = {name: tensor + 1 for name, tensor in start.items()}
    state = part.update_state(part.init(start), a_round({"a": start}, {"a": ended}), ended, 4)
    departing = part.broadcast_model(state, ended)
    torch.testing.assert_close(departing["0.weight"], start["0.weight"] + 1.25)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(departing[name], ended[name])


def test_drift_is_relative_to_the_received_model() -> None:
    part, model = ServerDrift(("weight", "bias")), get_state(linear())
    other = {name: tensor + 5 for name, tensor in model.items()}  # as while heads stay local
    returned = {"a": other, "b": {name: tensor + 1 for name, tensor in other.items()}}
    state = part.update_state(part.init(model), a_round({"a": model, "b": other}, returned), model, 2)
    assert all(
        torch.allclose(tensor, torch.full_like(tensor, 3.0)) for tensor in state.drift_by_name.values()
    )


def test_a_shared_parameter_is_corrected_under_all_its_names() -> None:
    module = nn.ModuleDict({"one": nn.Linear(3, 3)})
    module["two"] = module["one"]
    assert set(trained_keys(module)) == {"one.weight", "one.bias", "two.weight", "two.bias"}


def test_a_client_without_samples_keeps_its_drift(tmp_path: Path) -> None:
    layer = linear()
    memory = FedDynState({name: torch.randn_like(tensor) for name, tensor in layer.state_dict().items()})
    task = task_of(layer, torch.empty(0, dtype=torch.long), memory=memory)
    objective = FedDyn()
    kept = after_a_file(
        objective.next_client_state(task, objective.start_round(task), 0), FedDynState, tmp_path
    )
    assert isinstance(kept, FedDynState)
    assert all(
        torch.equal(kept.drift_by_name[name], memory.drift_by_name[name]) for name in memory.drift_by_name
    )


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_the_first_step_of_a_first_round_is_plain(alpha: float) -> None:
    layer, (x, y) = linear(), samples()
    objective, task = FedDyn(alpha=alpha), task_of(layer, y)
    result = together(objective.gradients(task, objective.start_round(task), x, y))
    np.testing.assert_allclose(result, slope(joined(layer), x, y), atol=1e-12)
