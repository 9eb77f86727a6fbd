"""FedCE against its formulas written out in numpy, and the model that each client is asked to judge."""

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
from celm.federation.trees import pack, unpack
from celm.rules.exchange import Delivery, Round, Update
from celm.rules.fedce import Contributions, FedCe
from celm.rules.rule import Facts, Weighing


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("seen", torch.tensor(0))


FACTS = Facts(("a", "b"), 2, (1,), 10, 0, Net(), ())
START = {"w": torch.tensor([1.0, 2.0, 3.0]), "mean": torch.zeros(1), "seen": torch.tensor(0)}


class Federation:
    """Plays rounds; clients are given as changes of w to what they are delivered, and what they report."""

    def __init__(self, rule: FedCe) -> None:
        self.rule = rule
        self.state = rule.init(FACTS)
        self.model = START
        self.number = 0

    def delivery(self, client: str) -> Delivery:
        return self.rule.deliver(self.state, self.model, client)

    def play(
        self, changes: Mapping[str, list[float]], examined: Mapping[str, float | None] | None = None
    ) -> Weighing[Contributions]:
        self.number += 1
        sent = {name: self.delivery(name) for name in in_order(changes)}
        updates = {}
        for i, (name, delivery) in enumerate(sent.items()):
            step = torch.tensor(changes[name], dtype=torch.float32)
            before = delivery.model
            after = {
                "w": torch.nan_to_num(before["w"] + step),
                "mean": before["mean"] + i,
                "seen": before["seen"] + 1,
            }
            updates[name] = Update(after, 1, 1, examined=(examined or {}).get(name))
        round = Round(self.number, 0.1, self.model, sent, updates)
        weighing = self.rule.weigh(self.state, FACTS, round)
        self.model = self.rule.merge(self.state, round, weighing)
        self.state = weighing.state
        return weighing


def test_two_rounds_by_hand() -> None:
    federation = Federation(FedCe())
    first = federation.play({"a": [1, 0, 0], "b": [1, 0, 0], "c": [0, 1, 0]})
    # cos with the others: a and b 1/√2 (with [1/3, 1/3]), c 0; nothing was judged, so e is equal.
    novel = 1 - 2**-0.5
    g = novel / (2 * novel + 1)
    a = (g + 1 / 3) / 2
    assert first.diagnostics["cosine"] == pytest.approx({"a": 2**-0.5, "b": 2**-0.5, "c": 0}, abs=1e-6)
    assert first.weights == pytest.approx({"a": a, "b": a, "c": 1 - 2 * a}, abs=1e-6)
    assert federation.model["w"].tolist() == pytest.approx([1 + 2 * a, 2 + 1 - 2 * a, 3], abs=1e-6)

    second = federation.play({"a": [1, 0, 0], "b": [1, 0, 0], "c": [0, 1, 0]}, {"a": 0.8, "b": 0.6, "c": 0.0})
    c = 1 - 2 * a
    cosine = a / math.hypot(a, c)
    g = 1 - (2**-0.5 + cosine) / 2
    total = 2 * g + 1
    e = [1 - 0.8 / 2, 1 - 0.6 / 2, 1.0]  # with the 0 of the first round
    expected = [(g / total + e[0] / 2.3) / 2, (g / total + e[1] / 2.3) / 2, (1 / total + e[2] / 2.3) / 2]
    assert list(second.weights.values()) == pytest.approx(expected, abs=1e-6)
    assert second.standing == second.weights == second.scores


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_weights_over_rounds_follow_the_formulas(mode: Any) -> None:
    rng = np.random.default_rng(7)
    federation = Federation(FedCe(mode=mode))
    a = np.full(3, 1 / 3)
    cosines: list[np.ndarray] = []
    scores: list[np.ndarray] = []
    for number in range(6):
        delta = rng.normal(size=(3, 3)) + 0.5
        if number == 3:
            delta[2] = 0
        total = a @ delta
        found = []
        for i in range(3):
            rest = total - a[i] * delta[i]
            lengths = np.linalg.norm(delta[i]) * np.linalg.norm(rest)
            found.append(delta[i] @ rest / lengths if lengths else 0.0)
        cosines.append(np.array(found))
        scores.append(np.zeros(3) if number == 0 else rng.uniform(size=3))
        novel = np.maximum(1 - np.mean(cosines, axis=0), 1e-6)
        missed = np.maximum(1 - np.mean(scores, axis=0), 1e-6)
        novel, missed = novel / novel.sum(), missed / missed.sum()
        a = np.maximum(novel + missed if mode == "plus" else novel * missed, 1e-6)
        a = a / a.sum()
        reports = dict(zip("abc", scores[-1].tolist(), strict=True)) if number else None
        weighing = federation.play(dict(zip("abc", delta.tolist(), strict=True)), reports)
        assert list(weighing.weights.values()) == pytest.approx(a, abs=1e-5)


def test_the_judged_model_is_the_mean_of_the_others() -> None:
    federation = Federation(FedCe())
    assert federation.delivery("a").examine is None
    changes = {"a": [1.0, 0.5, 0.0], "b": [-1.0, 2.0, 0.0], "c": [0.0, 3.0, 7.0]}
    weights = federation.play(changes).weights
    delivery = federation.delivery("b")
    assert delivery.model is federation.model
    assert delivery.examine is not None
    mean = (weights["a"] * np.array(changes["a"]) + weights["c"] * np.array(changes["c"])) / (
        1 - weights["b"]
    )
    assert delivery.examine["w"].tolist() == pytest.approx(np.array([1, 2, 3]) + mean, abs=1e-5)
    assert delivery.examine["mean"].item() == pytest.approx(2 * weights["c"] / (1 - weights["b"]), abs=1e-5)
    assert delivery.examine["seen"].item() == federation.model["seen"].item()
    assert federation.delivery("new").examine is None
    federation.play({"a": [1, 1, 1]})
    assert federation.delivery("a").examine is None  # nothing is left without it
    assert federation.delivery("b").examine is None  # it is not in there


def test_reports_are_taken_with_care() -> None:
    step = {"a": [1.0, 0, 0], "b": [0, 1.0, 0]}
    for odd, same in ((None, None), (math.nan, None), (math.inf, None), (7.0, 1.0), (-3.0, 0.0)):
        here, there = Federation(FedCe()), Federation(FedCe())
        for federation, report in ((here, odd), (there, same)):
            federation.play(step, {"a": 0.9})  # in the first round nothing was to be judged
            federation.play(step, {"a": report, "b": 0.5})
        assert here.state.weights == there.state.weights
        assert here.state.without["a"].count == (1 if same is None else 2)


def test_a_zero_update_among_zero_updates_is_as_new_as_any() -> None:
    weighing = Federation(FedCe()).play({key: [0.0, 0, 0] for key in "abc"})
    assert weighing.weights == pytest.approx(dict.fromkeys("abc", 1 / 3))


def test_who_is_away_keeps_its_weight_and_who_comes_late_starts_at_the_mean() -> None:
    federation = Federation(FedCe())
    first = federation.play({"a": [1, 0, 0], "b": [0.5, 1, 0]})
    second = federation.play({"b": [0, 1, 0], "c": [0, 1, 1]}, {"b": 0.5})
    assert second.standing["a"] == pytest.approx(first.standing["a"] * 2 / 3)
    assert sum(second.standing.values()) == pytest.approx(1)
    assert second.standing["b"] / second.standing["c"] == pytest.approx(
        second.weights["b"] / second.weights["c"]
    )
    assert second.state.similarity["a"] == first.state.similarity["a"]
    assert second.state.similarity["b"].count == 2
    third = federation.play({"a": [1, 0, 0], "b": [0, 1, 0]}, {"a": None, "b": 0.5})
    assert third.state.without["a"].count == 1


def test_its_state_survives_being_saved() -> None:
    federation = Federation(FedCe())
    federation.play({"a": [1, 0.1, 0], "b": [0, 1, 0.3]})
    state = federation.play({"a": [1, 0.7, 0], "b": [0, 1, 0.3]}, {"a": 0.3, "b": 0.1}).state
    tensors: dict[str, Tensor] = {}
    packed = json.loads(json.dumps(pack(state, "rule", tensors)))
    again = unpack(packed, tensors, FedCe.state_type)
    for name in ("parameters", "weights", "similarity", "without", "used"):
        assert getattr(again, name) == getattr(state, name)
    assert list(again.models) == list(state.models)
    for name, model in state.models.items():
        assert all(torch.equal(again.models[name][key], tensor) for key, tensor in model.items())


value = st.sampled_from([0.0, 1.0, -1.0, 3e38, -3e38, 1e-45]) | st.floats(-10, 10, width=32)
client = st.tuples(st.lists(value, min_size=3, max_size=3), st.none() | st.floats())
rounds = st.lists(st.dictionaries(st.sampled_from("abcd"), client, min_size=1), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(rounds, st.sampled_from(["plus", "times"]))
def test_weights_are_on_the_simplex(
    history: list[dict[str, tuple[list[float], float | None]]], mode: Any
) -> None:
    federation = Federation(FedCe(mode=mode))
    seen: set[str] = set()
    for clients in history:
        changes = {name: change for name, (change, _) in clients.items()}
        weighing = federation.play(changes, {name: report for name, (_, report) in clients.items()})
        seen |= set(clients)
        assert weighing.scores is not None
        for found, names in (
            (weighing.weights, set(clients)),
            (weighing.standing, seen),
            (weighing.scores, set(clients)),
        ):
            assert set(found) == names
            assert all(weight >= 0 for weight in found.values())
            assert sum(found.values()) == pytest.approx(1)
        json.dumps(dict(weighing.diagnostics), allow_nan=False)


@settings(max_examples=30, deadline=None)
@given(st.permutations(["x1", "x2", "x10"]), st.integers(0, 10**6))
def test_names_and_their_order_do_not_matter(names: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    here, there = Federation(FedCe()), Federation(FedCe())
    for _ in range(3):
        changes, reports = rng.normal(size=(3, 3)).tolist(), rng.uniform(size=3).tolist()
        one = here.play(dict(zip("abc", changes, strict=True)), dict(zip("abc", reports, strict=True)))
        other = there.play(dict(zip(names, changes, strict=True)), dict(zip(names, reports, strict=True)))
        for name, new in zip("abc", names, strict=True):
            assert other.weights[new] == pytest.approx(one.weights[name], abs=1e-5)
        torch.testing.assert_close(there.model["w"], here.model["w"], rtol=1e-4, atol=1e-4)
