"""CGSV against its formulas worked out by hand and in numpy, for each of its protocols."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.base.names import in_order
from celm.base.registry import build
from celm.federation.trees import pack, unpack
from celm.rules.cgsv import Cgsv, Reputations
from celm.rules.exchange import Delivery, Round, Update
from celm.rules.rule import Facts, Weighing
from celm.rules.updates import largest

PROTOCOLS = ["official", "keep", "aggregation_only"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.b = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("seen", torch.tensor(0))


FACTS = Facts(("a", "b"), 2, (1,), 10, 0, Net(), ())
START = {
    "w": torch.tensor([1.0, 2.0, 3.0]),
    "b": torch.zeros(1),
    "mean": torch.zeros(1),
    "seen": torch.tensor(0),
}


class Federation:
    """Plays rounds; clients are given as changes of w and b to whatever they are delivered."""

    def __init__(self, rule: Cgsv) -> None:
        self.rule = rule
        self.state = rule.init(FACTS)
        self.model = START
        self.number = 0

    def delivered(self, client: str) -> dict[str, Tensor]:
        return self.rule.deliver(self.state, self.model, client).model

    def play(
        self, changes: Mapping[str, list[float]], sizes: Mapping[str, int] | None = None
    ) -> Weighing[Reputations]:
        self.number += 1
        updates = {}
        sent = {name: Delivery(self.delivered(name)) for name in in_order(changes)}
        for name in sent:
            before, step = sent[name].model, torch.tensor(changes[name], dtype=torch.float32)
            after = {
                "w": torch.nan_to_num(before["w"] + step[:3]),
                "b": torch.nan_to_num(before["b"] + step[3:]),
                "mean": before["mean"] + 1,
                "seen": before["seen"] + 1,
            }
            updates[name] = Update(after, 1, (sizes or {}).get(name, 1))
        round = Round(self.number, 0.1, self.model, sent, updates)
        weighing = self.rule.weigh(self.state, FACTS, round)
        self.model = self.rule.merge(self.state, round, weighing)
        self.state = weighing.state
        return weighing


def test_the_official_rule_by_hand() -> None:
    federation = Federation(Cgsv())
    weighing = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 3, "b": 1})
    # At length 1/2: [.3, .4, 0] and [0, 0, .5]; u = [.225, .3, .125], ||u||² = 5/32.
    norm = math.sqrt(5 / 32)
    assert weighing.weights == pytest.approx({"a": 0.75, "b": 0.25})
    assert weighing.diagnostics["similarity"] == pytest.approx(
        {"a": 0.1875 / (0.5 * norm), "b": 0.125 / norm}, abs=1e-6
    )
    assert weighing.standing == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-6)  # φ is 3 : 1
    assert weighing.scores == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-6)
    assert federation.model["w"].tolist() == pytest.approx([1.225, 2.3, 3.125], abs=1e-6)
    # Reset, then rewarded: q_b = tanh(.25) / tanh(.75) = .386, so two values of three.
    assert weighing.diagnostics["reward"]["b"] == pytest.approx(math.tanh(0.25) / math.tanh(0.75), abs=1e-6)
    assert federation.delivered("a")["w"].tolist() == pytest.approx([1.225, 2.3, 3.125], abs=1e-6)
    assert federation.delivered("b")["w"].tolist() == pytest.approx([1.225, 2.3, 3.0], abs=1e-6)
    assert federation.delivered("new") is federation.model
    # Buffers are averaged, not reset.
    assert federation.model["mean"].tolist() == federation.delivered("b")["mean"].tolist() == [1.0]

    second = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 1, "b": 10**6})
    assert second.weights == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-6)  # the old reputation, no sizes
    r = [0.95 * 0.75 + 0.05 * 0.1875 / (0.5 * norm), 0.95 * 0.25 + 0.05 * 0.125 / norm]
    assert second.standing == pytest.approx({"a": r[0] / sum(r), "b": r[1] / sum(r)}, abs=1e-6)


def test_who_keeps_its_training_drifts_away() -> None:
    federation = Federation(Cgsv(protocol="keep"))
    federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 1, "b": 1})
    # No Γ: u = [1.5, 2, 1, 0], φ = 12.5/(5 ||u||), 1/||u||: r = 5/7, 2/7; q_b keeps two of three.
    assert federation.model["w"].tolist() == pytest.approx([2.5, 4, 4])
    assert federation.delivered("a")["w"].tolist() == pytest.approx([1 + 3 + 1.5, 2 + 4 + 2, 3 + 1])
    assert federation.delivered("b")["w"].tolist() == pytest.approx([1 + 1.5, 2 + 2, 3 + 2])
    clipped = Federation(Cgsv(protocol="keep", gamma=2.5))
    clipped.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]})
    assert clipped.model["w"].tolist() == pytest.approx([1 + 0.75, 2 + 1, 3 + 1], abs=1e-6)


def test_aggregation_only_is_a_mean_of_models_by_old_reputation() -> None:
    federation = Federation(Cgsv(protocol="aggregation_only"))
    first = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 1, "b": 99})
    assert first.weights == {"a": 0.5, "b": 0.5}
    assert first.standing == pytest.approx({"a": 5 / 7, "b": 2 / 7}, abs=1e-6)
    assert federation.delivered("a") is federation.model
    before = federation.model["w"].tolist()
    second = federation.play({"a": [7, 0, 0, 0], "b": [0, 7, 0, 0]})
    assert second.weights == pytest.approx({"a": 5 / 7, "b": 2 / 7}, abs=1e-6)
    assert federation.model["w"].tolist() == pytest.approx(
        [before[0] + 5, before[1] + 2, before[2]], abs=1e-5
    )


def numpy_official(deltas: list[dict[str, np.ndarray]], sizes: dict[str, int]) -> list[dict[str, float]]:
    """Reputations after each round, by the formulas."""
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
    federation = Federation(Cgsv())
    for delta, expected in zip(deltas, numpy_official(deltas, sizes), strict=True):
        weighing = federation.play({i: d.tolist() for i, d in delta.items()}, sizes)
        assert weighing.standing == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_that_are_alike_stay_equal(protocol: Any) -> None:
    federation = Federation(Cgsv(protocol=protocol))
    for _ in range(5):
        weighing = federation.play({key: [1.0, -2.0, 0.5, 3.0] for key in "abc"})
        assert weighing.weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
        assert weighing.standing == pytest.approx(dict.fromkeys("abc", 1 / 3))
        assert weighing.diagnostics["reward"] == pytest.approx(dict.fromkeys("abc", 1.0))


def test_who_works_against_all_falls_to_the_floor() -> None:
    federation = Federation(Cgsv(protocol="aggregation_only"))
    step = [1.0, 1.0, 0.0, 0.0]
    for _ in range(100):
        weighing = federation.play({"a": step, "b": step, "c": step, "d": [-x for x in step]})
    assert weighing.scores is not None
    assert weighing.scores["d"] == 0
    assert 0 < weighing.standing["d"] < 0.002


def test_the_largest_values_of_each_tensor_are_kept() -> None:
    step = {"w": torch.tensor([[3.0, -4.0], [0.5, 3.0]]), "b": torch.tensor([-2.0])}
    assert largest(step, 0.5)["w"].tolist() == [[3, -4], [0, 3]]  # ties are kept
    assert largest(step, 0.01)["w"].tolist() == [[0, -4], [0, 0]]
    assert largest(step, 0.01)["b"].tolist() == [-2]  # one value at least
    assert largest(step, 1.0)["w"].tolist() == step["w"].tolist()
    assert largest(step, 0.0)["w"].tolist() == [[0, 0], [0, 0]]


def test_who_is_away_keeps_reputation_and_model_and_who_comes_late_starts_at_the_mean() -> None:
    federation = Federation(Cgsv())
    first = federation.play({"a": [3, 4, 0, 0], "b": [0, 0, 2, 0]}, {"a": 3, "b": 1})
    own = federation.delivered("a")
    second = federation.play({"b": [0, 0, 2, 0], "c": [0, 0, 1, 0]})
    # c comes at the mean 1/2 and all are scaled by 2/3.
    assert second.standing["a"] == pytest.approx(first.standing["a"] * 2 / 3)
    assert second.weights == pytest.approx({"b": 1 / 3, "c": 2 / 3}, abs=1e-6)
    assert federation.delivered("a") is own
    assert set(second.standing) == {"a", "b", "c"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_its_state_survives_being_saved(protocol: Any) -> None:
    federation = Federation(Cgsv(protocol=protocol))
    federation.play({"a": [3, 4, 0, 0.1], "b": [0, 0.3, 2, 0]})
    state = federation.play({"a": [1, 1, 0, 0.7], "b": [0, 0, 2, 0]}).state
    tensors: dict[str, Tensor] = {}
    packed = json.loads(json.dumps(pack(state, "rule", tensors)))
    again = unpack(packed, tensors, Cgsv.state_type)
    assert (again.parameters, again.weights) == (state.parameters, state.weights)
    assert list(again.models) == list(state.models)
    for name, model in state.models.items():
        assert all(torch.equal(again.models[name][key], tensor) for key, tensor in model.items())


def test_settings_are_checked() -> None:
    assert build(Cgsv, {"protocol": "keep", "gamma": 0.15}, "rule", "cgsv") == Cgsv(
        protocol="keep", gamma=0.15
    )
    for wrong in ({"protocol": "other"}, {"alpha": 1.0}, {"gamma": -1.0}, {"beta": 0.0}):
        with pytest.raises(Exception, match="rule"):
            build(Cgsv, wrong, "rule", "cgsv")


value = st.sampled_from([0.0, 1.0, -1.0, 3e38, -3e38, 1e-45]) | st.floats(-10, 10, width=32)
step = st.lists(value, min_size=4, max_size=4)
rounds = st.lists(st.dictionaries(st.sampled_from("abcd"), step, min_size=1), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(rounds, st.sampled_from(PROTOCOLS), st.sampled_from([0, 1]))
def test_weights_are_on_the_simplex(history: list[dict[str, list[float]]], protocol: Any, size: int) -> None:
    federation = Federation(Cgsv(protocol=protocol))
    seen: set[str] = set()
    for changes in history:
        weighing = federation.play(changes, dict.fromkeys(changes, size))
        seen |= set(changes)
        assert weighing.scores is not None
        for found, clients in (
            (weighing.weights, set(changes)),
            (weighing.standing, seen),
            (weighing.scores, set(changes)),
        ):
            assert set(found) == clients
            assert all(weight >= 0 for weight in found.values())
            assert sum(found.values()) == pytest.approx(1)
        json.dumps(dict(weighing.diagnostics), allow_nan=False)


@settings(max_examples=30, deadline=None)
@given(st.permutations(["x1", "x2", "x10"]), st.sampled_from(PROTOCOLS), st.integers(0, 10**6))
def test_names_and_their_order_do_not_matter(names: list[str], protocol: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    here, there = Federation(Cgsv(protocol=protocol)), Federation(Cgsv(protocol=protocol))
    for _ in range(3):
        changes = rng.normal(size=(3, 4)).tolist()
        one = here.play(dict(zip("abc", changes, strict=True)))
        other = there.play(dict(zip(names, changes, strict=True)))
        for name, new in zip("abc", names, strict=True):
            assert other.weights[new] == pytest.approx(one.weights[name], abs=1e-5)
            assert other.standing[new] == pytest.approx(one.standing[name], abs=1e-5)
        torch.testing.assert_close(there.model["w"], here.model["w"], rtol=1e-4, atol=1e-4)
