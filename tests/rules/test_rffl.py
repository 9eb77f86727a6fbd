"""RFFL against its formulas worked out by hand and in numpy; removal is for good."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from celm.rules.rffl import Rffl
from support.rule_rounds import Federation, facts_of, module_of

START = {"w": torch.tensor([1.0, 2.0, 3.0]), "mean": torch.zeros(1)}


def federation_of(**settings: Any) -> Federation:
    """Clients are changes of w of the received model."""
    return Federation(Rffl(**settings), facts_of(module_of(w=3), rounds=100), START)


def test_a_round_by_hand() -> None:
    federation = federation_of()
    weighting = federation.play({"a": [3, 4, 0], "b": [0, 0, 0.2]})
    # Shortened to 1/2 where longer: [.3, .4, 0] and [0, 0, .2]; u = [.15, .2, .1].
    norm = math.sqrt(0.0725)
    assert weighting.aggregation_weights == {"a": 0.5, "b": 0.5}
    assert weighting.diagnostics["similarity"] == pytest.approx({"a": 0.25 / norm, "b": 0.1 / norm}, abs=1e-6)
    assert weighting.client_weights == pytest.approx({"a": 5 / 7, "b": 2 / 7}, abs=1e-6)
    assert weighting.diagnostics["reward"] == pytest.approx({"a": 1, "b": 0.4}, abs=1e-6)
    assert federation.model["w"].tolist() == pytest.approx([1.15, 2.2, 3.1], abs=1e-6)
    # Its own shortened update, and the reward on top: all three values, and two of three.
    assert federation.delivered("a")["w"].tolist() == pytest.approx([1.45, 2.6, 3.1], abs=1e-6)
    assert federation.delivered("b")["w"].tolist() == pytest.approx([1.15, 2.2, 3.2], abs=1e-6)
    assert federation.delivered("b")["mean"].tolist() == federation.model["mean"].tolist() == [1.0]
    assert federation.delivered("new") is federation.model

    second = federation.play({"a": [3, 4, 0], "b": [0, 0, 0.2]})
    assert second.aggregation_weights == pytest.approx({"a": 5 / 7, "b": 2 / 7}, abs=1e-6)


def test_reputations_and_removal_over_rounds_follow_the_formulas() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(size=3)
    sizes = {"a": 1, "b": 2, "c": 3, "d": 4}
    federation = federation_of(alpha=0.5, patience=3)
    trusted, r = list("abcd"), dict.fromkeys("abcd", 0.0)
    for number in range(1, 9):
        delta = {i: common + 0.5 * rng.normal(size=3) for i in "abcd"}
        delta["b"] = rng.normal(size=3) * 5
        delta["d"] = -common
        u = {i: d * min(1.0, 0.5 / (np.linalg.norm(d) + 1e-7)) for i, d in delta.items()}
        weight = {i: sizes[i] / 10 for i in u} if number == 1 else r
        total = sum(weight[i] * u[i] for i in u)
        phi = {i: float(u[i] @ total / np.linalg.norm(u[i]) / np.linalg.norm(total)) for i in u}
        r = {i: max(0.5 * r[i] + 0.5 * phi[i], 0.0) if i in trusted else 0.0 for i in u}
        r = {i: value / sum(r.values()) for i, value in r.items()}
        if number > 3:
            fallen = [i for i in trusted if r[i] < 1 / 3 / len(trusted)]
            trusted = [i for i in trusted if i not in fallen]
            r = {i: value if i in trusted else 0.0 for i, value in r.items()}
            r = {i: value / sum(r.values()) for i, value in r.items()}
        weighting = federation.play({i: d.tolist() for i, d in delta.items()}, sizes)
        assert weighting.client_weights == pytest.approx(r, abs=1e-5)
        assert set(weighting.diagnostics["removed"]) == set("abcd") - set(trusted)
    assert len(trusted) < 4  # so removal was tried


def test_removal_waits_and_is_for_good() -> None:
    federation = federation_of(alpha=0.5)
    good, bad = [1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]
    for number in range(1, 12):
        weighting = federation.play({"a": good, "b": good, "c": bad})
        assert weighting.diagnostics["removed"] == ([] if number <= 10 else ["c"])
    for _ in range(30):  # reformed, too late
        before = federation.model["w"]
        weighting = federation.play({"a": good, "b": good, "c": good})
        assert (
            weighting.aggregation_weights["c"]
            == weighting.client_weights["c"]
            == weighting.diagnostics["reward"].get("c", 0.0)
            == 0
        )
        assert weighting.client_weights == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})
    # It goes on alone: its own shortened update and no reward.
    assert torch.linalg.norm(federation.model["w"] - before).item() == pytest.approx(0.5, abs=1e-5)
    own = federation.delivered("c")["w"]
    federation.play({"a": good, "b": good, "c": [0.3, 0.0, 0.0]})
    assert (federation.delivered("c")["w"] - own).tolist() == pytest.approx([0.3, 0, 0], abs=1e-5)
    # With only the removed there, the global model stays.
    before = federation.model["w"]
    weighting = federation.play({"c": good})
    assert weighting.aggregation_weights == {"c": 1.0}
    assert weighting.client_weights == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})
    assert federation.model["w"] is before


def test_clients_that_are_alike_stay_equal() -> None:
    federation = federation_of(patience=0)
    for _ in range(5):
        weighting = federation.play({key: [1.0, -2.0, 0.5] for key in "abc"})
        assert weighting.aggregation_weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
        assert weighting.client_weights == pytest.approx(dict.fromkeys("abc", 1 / 3))


def test_absent_clients_keep_reputation_and_model_and_newcomers_start_at_the_mean() -> None:
    federation = federation_of(patience=0)
    first = federation.play({"a": [3, 4, 0], "b": [0, 0, 0.2]})
    own = federation.delivered("a")
    second = federation.play({"b": [0, 0, 2], "c": [0, 0, 1]})
    assert second.client_weights["a"] == pytest.approx(first.client_weights["a"] * 2 / 3)
    assert second.aggregation_weights == pytest.approx({"b": 4 / 11, "c": 7 / 11}, abs=1e-6)  # 2/7 : 1/2
    assert federation.delivered("a") is own
