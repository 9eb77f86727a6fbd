"""FedAwS: steps by finite differences, and classes that end further apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celm.base.errors import CelmError
from celm.models.state_dict import get_state
from celm.objectives.cross_entropy import Plain
from celm.objectives.fedaws import FedAws
from support.local_training import Array, net, samples, task_of


def distances(W: Array) -> Array:
    unit = W / np.linalg.norm(W, axis=1, keepdims=True)
    return (1 - unit @ unit.T) / 2


def crowding(W: Array, margin: float) -> float:
    K, d = len(W), distances(W)
    pairs = [(a, b) for a in range(K) for b in range(K) if a != b]
    return sum(max(0.0, margin - d[a, b]) ** 2 for a, b in pairs) / K**2


def slope(W: Array, margin: float) -> Array:
    result = np.zeros_like(W)
    for at in np.ndindex(*W.shape):
        side = np.zeros_like(W)
        side[at] = 1e-6
        result[at] = (crowding(W + side, margin) - crowding(W - side, margin)) / 2e-6
    return result


def rows(classes: int, seed: int, width: int = 6) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(classes, width, generator=draw, dtype=torch.float64)


def test_three_steps_with_momentum_by_hand() -> None:
    W = rows(4, 0)
    expected, velocity = W.numpy().copy(), np.zeros((4, 6))
    for _ in range(3):
        velocity = 0.9 * velocity + slope(expected, 0.8)
        expected = expected - 0.5 * velocity
    result = FedAws(margin=0.8, steps=3, lr=0.5).spread_rows(W)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-7)


@settings(deadline=None, max_examples=20)
@given(classes=st.integers(2, 8), seed=st.integers(0, 99))
def test_crowded_classes_are_spread_out(classes: int, seed: int) -> None:
    W = rows(classes, seed)
    W = W + 2 * W.mean(dim=0)  # crowded to one side
    objective = FedAws()
    spread = objective.spread_rows(W).numpy()
    off = ~np.eye(classes, dtype=bool)

    def crowding(result: np.ndarray) -> float:
        return float(np.square(np.maximum(0, objective.margin - distances(result)[off])).mean())

    assert crowding(spread) < crowding(W.numpy()) or crowding(W.numpy()) == 0


def test_classes_beyond_the_margin_are_left_alone() -> None:
    W = torch.eye(4, 6, dtype=torch.float64)
    assert torch.equal(FedAws(margin=0.4).spread_rows(W), W)


def test_only_the_weight_of_the_head_changes() -> None:
    module = net()
    part = FedAws().server_hook(("2.weight", "2.bias"), ())
    assert part is not None
    model = get_state(module)
    after = part.postprocess(part.init(model), model)
    assert {name for name in model if not torch.equal(after[name], model[name])} == {"2.weight"}
    assert after["2.weight"].dtype == model["2.weight"].dtype
    assert not after["2.weight"].requires_grad


def test_clients_train_plainly() -> None:
    x, y = samples()
    task = task_of(net(), y)
    assert FedAws().loss(task, None, x, y) == Plain().loss(task, None, x, y)


def test_a_head_without_rows_is_refused() -> None:
    part = FedAws().server_hook(("head.original0",), ())
    assert part is not None
    with pytest.raises(CelmError, match="linear head"):
        part.init({"head.original0": torch.ones(3, 1)})
