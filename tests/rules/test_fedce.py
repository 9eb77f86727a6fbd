"""FedCE against its formulas in numpy, and the model that each client evaluates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from celm.rules.fedce import FedCe
from support.rule_rounds import Federation, facts_of, module_of

START = {"w": torch.tensor([1.0, 2.0, 3.0]), "mean": torch.zeros(1), "seen": torch.tensor(0)}


def federation_of(**settings: Any) -> Federation:
    """Clients are changes of w and of the buffer of the received model."""
    return Federation(FedCe(**settings), facts_of(module_of(w=3)), START)


def test_two_rounds_by_hand() -> None:
    federation = federation_of()
    first = federation.play({"a": [1, 0, 0], "b": [1, 0, 0], "c": [0, 1, 0]})
    # cos with the others: a and b 1/√2 (with [1/3, 1/3]), c 0; nothing was judged, so e is equal.
    novel = 1 - 2**-0.5
    g = novel / (2 * novel + 1)
    a = (g + 1 / 3) / 2
    assert first.diagnostics["cosine"] == pytest.approx({"a": 2**-0.5, "b": 2**-0.5, "c": 0}, abs=1e-6)
    assert first.aggregation_weights == pytest.approx({"a": a, "b": a, "c": 1 - 2 * a}, abs=1e-6)
    assert federation.model["w"].tolist() == pytest.approx([1 + 2 * a, 2 + 1 - 2 * a, 3], abs=1e-6)

    second = federation.play(
        {"a": [1, 0, 0], "b": [1, 0, 0], "c": [0, 1, 0]}, examined={"a": 0.8, "b": 0.6, "c": 0.0}
    )
    c = 1 - 2 * a
    cosine = a / math.hypot(a, c)
    g = 1 - (2**-0.5 + cosine) / 2
    total = 2 * g + 1
    e = [1 - 0.8 / 2, 1 - 0.6 / 2, 1.0]  # with the 0 of the first round
    expected = [(g / total + e[0] / 2.3) / 2, (g / total + e[1] / 2.3) / 2, (1 / total + e[2] / 2.3) / 2]
    assert list(second.aggregation_weights.values()) == pytest.approx(expected, abs=1e-6)
    assert second.client_weights == second.aggregation_weights == second.scores


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_weights_over_rounds_follow_the_formulas(mode: Any) -> None:
    rng = np.random.default_rng(7)
    federation = federation_of(mode=mode)
    a = np.full(3, 1 / 3)
    cosines: list[np.ndarray] = []
    scores: list[np.ndarray] = []
    for number in range(6):
        delta = rng.normal(size=(3, 3)) + 0.5
        if number == 3:
            delta[2] = 0
        total = a @ delta
        result = []
        for i in range(3):
            rest = total - a[i] * delta[i]
            lengths = np.linalg.norm(delta[i]) * np.linalg.norm(rest)
            result.append(delta[i] @ rest / lengths if lengths else 0.0)
        cosines.append(np.array(result))
        scores.append(np.zeros(3) if number == 0 else rng.uniform(size=3))
        novel = np.maximum(1 - np.mean(cosines, axis=0), 1e-6)
        missed = np.maximum(1 - np.mean(scores, axis=0), 1e-6)
        novel, missed = novel / novel.sum(), missed / missed.sum()
        a = np.maximum(novel + missed if mode == "plus" else novel * missed, 1e-6)
        a = a / a.sum()
        reports = dict(zip("abc", scores[-1].tolist(), strict=True)) if number else None
        weighting = federation.play(dict(zip("abc", delta.tolist(), strict=True)), examined=reports)
        assert list(weighting.aggregation_weights.values()) == pytest.approx(a, abs=1e-5)


def test_the_model_to_evaluate_is_the_mean_of_the_others() -> None:
    federation = federation_of()
    assert federation.delivery("a").model_to_evaluate is None
    changes = {"a": [1.0, 0.5, 0.0, 0.0], "b": [-1.0, 2.0, 0.0, 1.0], "c": [0.0, 3.0, 7.0, 2.0]}
    weights = federation.play(changes).aggregation_weights
    delivery = federation.delivery("b")
    assert delivery.model is federation.model
    assert delivery.model_to_evaluate is not None
    mean = (weights["a"] * np.array(changes["a"]) + weights["c"] * np.array(changes["c"])) / (
        1 - weights["b"]
    )
    assert delivery.model_to_evaluate["w"].tolist() == pytest.approx(np.array([1, 2, 3]) + mean[:3], abs=1e-5)
    assert delivery.model_to_evaluate["mean"].item() == pytest.approx(
        2 * weights["c"] / (1 - weights["b"]), abs=1e-5
    )
    assert delivery.model_to_evaluate["seen"].item() == federation.model["seen"].item()
    assert federation.delivery("new").model_to_evaluate is None
    federation.play({"a": [1, 1, 1]})
    assert federation.delivery("a").model_to_evaluate is None  # nothing is left without it
    assert federation.delivery("b").model_to_evaluate is None  # it is not in there


def test_reported_accuracies_are_checked() -> None:
    step = {"a": [1.0, 0, 0], "b": [0, 1.0, 0]}
    for odd, same in ((None, None), (math.nan, None), (math.inf, None), (7.0, 1.0), (-3.0, 0.0)):
        here, there = federation_of(), federation_of()
        for federation, report in ((here, odd), (there, same)):
            federation.play(step, examined={"a": 0.9})  # in the first round nothing was to be judged
            federation.play(step, examined={"a": report, "b": 0.5})
        assert here.state.weights == there.state.weights
        assert here.state.accuracy_without["a"].count == (1 if same is None else 2)


def test_a_zero_update_among_zero_updates_is_as_new_as_any() -> None:
    weighting = federation_of().play({key: [0.0, 0, 0] for key in "abc"})
    assert weighting.aggregation_weights == pytest.approx(dict.fromkeys("abc", 1 / 3))


def test_absent_clients_keep_their_weight_and_newcomers_start_at_the_mean() -> None:
    federation = federation_of()
    first = federation.play({"a": [1, 0, 0], "b": [0.5, 1, 0]})
    second = federation.play({"b": [0, 1, 0], "c": [0, 1, 1]}, examined={"b": 0.5})
    assert second.client_weights["a"] == pytest.approx(first.client_weights["a"] * 2 / 3)
    assert sum(second.client_weights.values()) == pytest.approx(1)
    assert second.client_weights["b"] / second.client_weights["c"] == pytest.approx(
        second.aggregation_weights["b"] / second.aggregation_weights["c"]
    )
    assert second.state.similarity["a"] == first.state.similarity["a"]
    assert second.state.similarity["b"].count == 2
    third = federation.play({"a": [1, 0, 0], "b": [0, 1, 0]}, examined={"a": None, "b": 0.5})
    assert third.state.accuracy_without["a"].count == 1
