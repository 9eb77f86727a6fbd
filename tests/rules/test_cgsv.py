"""CGSV against its formulas worked out by hand and in numpy, for each of its protocols."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from celm.base.registry import build_component
from celm.rules.cgsv import Cgsv
from celm.rules.update_ops import top_fraction
from support.rule_rounds import Federation, facts_of, module_of

PROTOCOLS = ["official", "keep", "aggregation_only"]


START = {
    "w": torch.tensor([1.0, 2.0, 3.0]),
    "b": torch.zeros(1),
    "mean": torch.zeros(1),
    "seen": torch.tensor(0),
}


def federation_of(**settings: Any) -> Federation:
    """Clients are changes of w and b of the received model."""
    return Federation(Cgsv(**settings), facts_of(module_of(w=3, b=1)), START)


def test_the_official_rule_by_hand() -> None:
    federation = federation_of()
    weighting = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 3, "b": 1})
    # At length 1/2: [.3, .4, 0] and [0, 0, .5]; u = [.225, .3, .125], ||u||² = 5/32.
    norm = math.sqrt(5 / 32)
    assert weighting.aggregation_weights == pytest.approx({"a": 0.75, "b": 0.25})
    assert weighting.diagnostics["similarity"] == pytest.approx(
        {"a": 0.1875 / (0.5 * norm), "b": 0.125 / norm}, abs=1e-6
    )
    assert weighting.client_weights == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-6)  # φ is 3 : 1
    assert weighting.scores == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-6)
    assert federation.model["w"].tolist() == pytest.approx([1.225, 2.3, 3.125], abs=1e-6)
    # Reset, then rewarded: q_b = tanh(.25) / tanh(.75) = .386, so two values of three.
    assert weighting.diagnostics["reward"]["b"] == pytest.approx(math.tanh(0.25) / math.tanh(0.75), abs=1e-6)
    assert federation.delivered("a")["w"].tolist() == pytest.approx([1.225, 2.3, 3.125], abs=1e-6)
    assert federation.delivered("b")["w"].tolist() == pytest.approx([1.225, 2.3, 3.0], abs=1e-6)
    assert federation.delivered("new") is federation.model
    # Buffers are averaged, not reset.
    assert federation.model["mean"].tolist() == federation.delivered("b")["mean"].tolist() == [1.0]

    second = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 1, "b": 10**6})
    assert second.aggregation_weights == pytest.approx(
        {"a": 0.75, "b": 0.25}, abs=1e-6
    )  # the old reputation, no sizes
    r = [0.95 * 0.75 + 0.05 * 0.1875 / (0.5 * norm), 0.95 * 0.25 + 0.05 * 0.125 / norm]
    assert second.client_weights == pytest.approx({"a": r[0] / sum(r), "b": r[1] / sum(r)}, abs=1e-6)


def test_clients_that_keep_their_training_drift_away() -> None:
    federation = federation_of(protocol="keep")
    federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 1, "b": 1})
    # No Γ: u = [1.5, 2, 1, 0], φ = 12.5/(5 ||u||), 1/||u||: r = 5/7, 2/7; q_b keeps two of three.
    assert federation.model["w"].tolist() == pytest.approx([2.5, 4, 4])
    assert federation.delivered("a")["w"].tolist() == pytest.approx([1 + 3 + 1.5, 2 + 4 + 2, 3 + 1])
    assert federation.delivered("b")["w"].tolist() == pytest.approx([1 + 1.5, 2 + 2, 3 + 2])
    clipped = federation_of(protocol="keep", gamma=2.5)
    clipped.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]})
    assert clipped.model["w"].tolist() == pytest.approx([1 + 0.75, 2 + 1, 3 + 1], abs=1e-6)


def test_aggregation_only_is_a_mean_of_models_by_old_reputation() -> None:
    federation = federation_of(protocol="aggregation_only")
    first = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 1, "b": 99})
    assert first.aggregation_weights == {"a": 0.5, "b": 0.5}
    assert first.client_weights == pytest.approx({"a": 5 / 7, "b": 2 / 7}, abs=1e-6)
    assert federation.delivered("a") is federation.model
    before = federation.model["w"].tolist()
    second = federation.play({"a": [7, 0, 0, 0], "b": [0, 7, 0, 0]})
    assert second.aggregation_weights == pytest.approx({"a": 5 / 7, "b": 2 / 7}, abs=1e-6)
    assert federation.model["w"].tolist() == pytest.approx(
        [before[0] + 5, before[1] + 2, before[2]], abs=1e-5
    )


def numpy_official(deltas: list[dict[str, np.ndarray]], sizes: dict[str, int]) -> list[dict[str, float]]:
    """Return the reputations after each round by the formulas."""
    r: dict[str, float] = {}
    history = []
    for number, delta in enumerate(deltas):
        u = {i: 0.5 * d / (np.linalg.norm(d) + 1e-7) for i, d in delta.items()}
        weight = {i: sizes[i] / sum(sizes.values()) for i in u} if number == 0 else r
        total = sum(weight[i] * u[i] for i in u)
        new = {}
        for i in u:
            lengths = np.linalg.norm(u[i]) * np.linalg.norm(total)
            phi = float(u[i] @ total / lengths) if lengths else 0.0
            new[i] = max(0.95 * r.get(i, 0.0) + 0.05 * phi, 1e-3)
        r = {i: value / sum(new.values()) for i, value in new.items()}
        history.append(r)
    return history


def test_reputations_over_rounds_follow_the_formulas() -> None:
    rng = np.random.default_rng(1)
    deltas = [{i: rng.normal(size=4) for i in "abcd"} for _ in range(6)]
    deltas[3]["b"] = np.zeros(4)
    sizes = {"a": 1, "b": 2, "c": 3, "d": 4}
    federation = federation_of()
    for delta, expected in zip(deltas, numpy_official(deltas, sizes), strict=True):
        weighting = federation.play({i: d.tolist() for i, d in delta.items()}, sizes)
        assert weighting.client_weights == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_that_are_alike_stay_equal(protocol: Any) -> None:
    federation = federation_of(protocol=protocol)
    for _ in range(5):
        weighting = federation.play({key: [1.0, -2.0, 0.5, 3.0] for key in "abc"})
        assert weighting.aggregation_weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
        assert weighting.client_weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
        assert weighting.diagnostics["reward"] == pytest.approx(dict.fromkeys("abc", 1.0))


def test_a_client_that_works_against_all_falls_to_the_floor() -> None:
    federation = federation_of(protocol="aggregation_only")
    step = [1.0, 1.0, 0.0, 0.0]
    for _ in range(100):
        weighting = federation.play({"a": step, "b": step, "c": step, "d": [-x for x in step]})
    assert weighting.scores is not None
    assert weighting.scores["d"] == 0
    assert 0 < weighting.client_weights["d"] < 0.002


def test_the_largest_values_of_each_tensor_are_kept() -> None:
    step = {"w": torch.tensor([[3.0, -4.0], [0.5, 3.0]]), "b": torch.tensor([-2.0])}
    assert top_fraction(step, 0.5)["w"].tolist() == [[3, -4], [0, 3]]  # ties are kept
    assert top_fraction(step, 0.01)["w"].tolist() == [[0, -4], [0, 0]]
    assert top_fraction(step, 0.01)["b"].tolist() == [-2]  # one value at least
    assert top_fraction(step, 1.0)["w"].tolist() == step["w"].tolist()
    assert top_fraction(step, 0.0)["w"].tolist() == [[0, 0], [0, 0]]


def test_absent_clients_keep_reputation_and_model_and_newcomers_start_at_the_mean() -> None:
    federation = federation_of()
    first = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 3, "b": 1})
    own = federation.delivered("a")
    second = federation.play({"b": [0, 0, 2, 0], "c": [0, 0, 1, 0]})
    # c comes at the mean 1/2 and all are scaled by 2/3.
    assert second.client_weights["a"] == pytest.approx(first.client_weights["a"] * 2 / 3)
    assert second.aggregation_weights == pytest.approx({"b": 1 / 3, "c": 2 / 3}, abs=1e-6)
    assert federation.delivered("a") is own
    assert set(second.client_weights) == {"a", "b", "c"}


def test_settings_are_checked() -> None:
    assert build_component(Cgsv, {"protocol": "keep", "gamma": 0.15}, "rule", "cgsv") == Cgsv(
        protocol="keep", gamma=0.15
    )
    for wrong in ({"protocol": "other"}, {"alpha": 1.0}, {"gamma": -1.0}, {"beta": 0.0}):
        with pytest.raises(Exception, match="rule"):
            build_component(Cgsv, wrong, "rule", "cgsv")
