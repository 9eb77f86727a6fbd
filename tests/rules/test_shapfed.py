"""ShapFed against its formulas in numpy, over rounds and with personal models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from celm.base.registry import build_component
from celm.rules.rule import ServerContext
from celm.rules.shapfed import ShapFed
from support.rule_rounds import Federation, a_round


class Net(nn.Module):
    """A head of two classes on two features, a parameter before it, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.zeros(1))
        self.head = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(1))


FACTS = ServerContext(("a", "b"), 2, (2,), 10, 0, Net(), ("head.weight", "head.bias"))
START = {
    "body": torch.zeros(1),
    "head.weight": torch.zeros(2, 2),
    "head.bias": torch.zeros(2),
    "mean": torch.zeros(1),
}


def model(before: Mapping[str, Tensor], change: Any) -> dict[str, Tensor]:
    """`change` is `[K, d + 1]`: weight and bias of each class; body and buffer go up by one."""
    step = torch.tensor(np.array(change), dtype=torch.float32)
    return {
        "body": before["body"] + 1,
        "head.weight": torch.nan_to_num(before["head.weight"] + step[:, :2]),
        "head.bias": torch.nan_to_num(before["head.bias"] + step[:, 2]),
        "mean": before["mean"] + 1,
    }


def federation_of(**settings: Any) -> Federation:
    """Clients are changes of the received head."""
    return Federation(build_component(ShapFed, settings, "rule", "shapfed"), FACTS, START, model)


def test_a_round_by_hand() -> None:
    # Class 0: [1, 0, 0] and [0, 1, 0] against their mean, cos 45°. Class 1: alike, and zero for b.
    changes = {"a": [[1, 0, 0], [0, 0, 2]], "b": [[0, 1, 0], [0, 0, 0]]}
    weighting = federation_of().play(changes)
    edge = (1 + 2**-0.5) / 2
    assert weighting.diagnostics["similarity"]["a"] == pytest.approx([edge, 1])
    assert weighting.diagnostics["similarity"]["b"] == pytest.approx([edge, 0.5])
    total = 2 * edge + 1.5
    assert weighting.aggregation_weights == pytest.approx(
        {"a": (edge + 1) / total, "b": (edge + 0.5) / total}
    )
    assert weighting.client_weights == weighting.scores == weighting.aggregation_weights
    raw = federation_of(similarity="raw").play(changes)
    assert raw.diagnostics["similarity"]["b"] == pytest.approx([2**-0.5, 0])
    assert raw.aggregation_weights["b"] == pytest.approx(2**-0.5 / (2 * 2**-0.5 + 1))
    soft = federation_of(normalise="softmax").play(changes)
    assert soft.aggregation_weights["b"] == pytest.approx(1 / (1 + np.exp(0.25)))


def unit(vectors: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


@pytest.mark.parametrize("similarity", ["half", "raw"])
@pytest.mark.parametrize("normalise", ["sum", "softmax"])
def test_weights_over_rounds_follow_the_formulas(similarity: Any, normalise: Any) -> None:
    rng = np.random.default_rng(5)
    federation = federation_of(similarity=similarity, normalise=normalise)
    weights, gamma = np.full(3, 1 / 3), np.zeros(3)
    for number in range(6):
        gradient = rng.normal(size=(3, 2, 3)) + 0.5
        if number == 2:
            gradient[1] = 0
        common = np.einsum("i,ikd->kd", weights, gradient)
        cosine = (unit(gradient) * unit(common)[None]).sum(-1)
        similar = (1 + cosine) / 2 if similarity == "half" else cosine
        gamma = similar.mean(1) if number == 0 else 0.9 * gamma + 0.1 * similar.mean(1)
        weights = np.maximum(gamma, 1e-3) if normalise == "sum" else np.exp(gamma)
        weights = weights / weights.sum()
        before = federation.model["head.weight"].numpy()
        # The pseudo-gradient is what was sent less what came back, over the learning rate.
        weighting = federation.play(dict(zip("abc", -0.1 * gradient, strict=True)))
        assert [*weighting.aggregation_weights.values()] == pytest.approx(weights, abs=1e-5)
        for name, values in zip("abc", similar, strict=True):
            assert weighting.diagnostics["similarity"][name] == pytest.approx(values, abs=1e-5)
        merged = before - 0.1 * np.einsum("i,ikd->kd", weights, gradient[:, :, :2])
        assert federation.model["head.weight"].numpy() == pytest.approx(merged, abs=1e-5)


def test_clients_that_are_alike_have_similarity_one_and_stay_equal() -> None:
    federation = federation_of()
    for _ in range(4):
        weighting = federation.play({key: [[1, 2, 3], [-4, 5, 6]] for key in "abc"})
        assert weighting.diagnostics["similarity"]["b"] == pytest.approx([1, 1])
        assert weighting.aggregation_weights == pytest.approx(dict.fromkeys("abc", 1 / 3))


def test_raw_cosines_below_the_floor_count_as_the_floor() -> None:
    step = np.array([[1.0, 2, 3], [-4, 5, 6]])
    weighting = federation_of(similarity="raw", floor=0.01).play({"a": step, "b": step, "c": -step})
    assert weighting.diagnostics["similarity"]["c"] == pytest.approx([-1, -1])
    assert weighting.aggregation_weights == pytest.approx({"a": 1 / 2.01, "b": 1 / 2.01, "c": 0.01 / 2.01})
    assert federation_of().play({"a": step, "b": step, "c": -step}).aggregation_weights["c"] < 1e-3


def test_changes_are_relative_to_the_received_model() -> None:
    rule = ShapFed()
    other = {**START, "head.weight": torch.full((2, 2), 9.0)}
    change = np.array([[1.0, 2, 3], [-4, 5, 6]])
    sent = {"a": START, "b": other}
    round = a_round(START, {name: model(start, change) for name, start in sent.items()}, sent=sent)
    weighting = rule.compute_weights(rule.init(FACTS), FACTS, round)
    assert weighting.diagnostics["similarity"]["b"] == pytest.approx([1, 1], abs=1e-5)


def test_personal_models_mix_by_contribution() -> None:
    changes = {"a": [[1, 0, 0], [0, 0, 2]], "b": [[0, 1, 0], [0, 0, 0]]}
    federation = federation_of(personal=True)
    assert federation.rule.personal
    assert not ShapFed().personal
    weighting = federation.play(changes)
    edge = (1 + 2**-0.5) / 2
    part = (edge + 0.5) / (edge + 1)
    merged = federation.model["head.weight"].numpy()
    assert federation.delivered("a")["head.weight"].numpy() == pytest.approx(
        merged
    )  # the best gets all of it
    own = np.array([[0, 1], [0, 0]])
    assert federation.delivered("b")["head.weight"].numpy() == pytest.approx((1 - part) * own + part * merged)
    assert federation.delivered("b")["mean"].tolist() == [1.0]  # its own buffer
    assert federation.delivered("new") is federation.model
    assert set(weighting.state.models) == {"a", "b"}
    plain = federation_of()
    assert plain.play(changes).state.models == {}
    assert plain.delivered("b") is plain.model


def test_absent_clients_keep_their_similarity_and_newcomers_start_with_their_own() -> None:
    federation = federation_of()
    first = federation.play({"a": [[1, 0, 0], [0, 0, 2]], "b": [[0, 1, 0], [0, 0, 0]]})
    gamma = np.mean(first.diagnostics["similarity"]["a"])
    second = federation.play({"b": [[1, 1, 1], [1, 1, 1]], "c": [[1, 1, 1], [1, 1, 1]]})
    b = 0.9 * np.mean(first.diagnostics["similarity"]["b"]) + 0.1
    assert second.aggregation_weights == pytest.approx({"b": b / (b + 1), "c": 1 / (b + 1)})
    assert second.client_weights == pytest.approx(
        {"a": gamma / (gamma + b + 1), "b": b / (gamma + b + 1), "c": 1 / (gamma + b + 1)}
    )
