"""What every rule must do, whatever it makes of the updates.

Rules are played on a model of five parameters that can be probed, has a head and buffers, and whose accuracy
on validation data is a smooth function of its head. Numbers of single rules are in files of their own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.models.state import StateDict
from celm.rules import rules
from celm.rules.rule import AnyRule, Facts, ProbeSettings, Weighing
from objectives.local_training import after_a_file
from rules.rounds import Federation, identical, on_simplex

CLASSES = 2
SAMPLES = 10**6  # of each class: a model that differs by rounding is one sample better at the most


class Net(nn.Module):
    """Logits are linear in the input, so that a probe ends at the same place wherever it began."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(1, CLASSES)
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body * x)
        return logits


START: StateDict = {
    "body": torch.tensor([0.5]),
    "head.weight": torch.tensor([[0.25], [-0.5]]),
    "head.bias": torch.tensor([-0.75, -1.0]),
    "mean": torch.zeros(1),
    "seen": torch.tensor(0),
}


def validate(models: Sequence[StateDict]) -> list[Tensor]:
    """The larger the weight and the bias of a class, the more of its samples are right."""
    counts = []
    for model in models:
        level = (model["head.weight"][:, 0] + model["head.bias"]).double().sigmoid().nan_to_num()
        first, second = (level * SAMPLES).long().tolist()
        counts.append(torch.tensor([[first, SAMPLES - first], [SAMPLES - second, second]]))
    return counts


def facts(clients: Sequence[str], probe_steps: int = 3) -> Facts:
    head = ("head.weight", "head.bias")
    return Facts(tuple(clients), CLASSES, (1,), 20, 7, Net(), head, ProbeSettings(probe_steps, 0.2, 0.5))


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "celm": [
        {},
        {"warmup": 3, "beta": 0.2},
        {"warmup": 2, "debias": False, "share_by": "all", "warm_start": False},
    ],
    "fedavg": [{}, {"by_size": True}],
    "fednova": [{}, {"by_size": True, "momentum": 0.9}],
    "shapfed": [
        {},
        {"similarity": "raw"},
        {"normalise": "softmax"},
        {"personal": True},
        {"similarity": "raw", "normalise": "softmax", "personal": True},
    ],
    "cgsv": [{}, {"protocol": "keep"}, {"protocol": "aggregation_only"}],
    "rffl": [{}, {"alpha": 0.5, "patience": 0}, {"alpha": 0.0, "gamma": 0.0, "patience": 0}],
    "cffl": [
        {},
        {"threshold": 0.99},
        {"sharpen": "share"},
        {"mode": "paper"},
        {"mode": "paper", "clip": 100.0, "theta": 0.5, "threshold": 0.0},
        {"mode": "paper", "clip": 100.0, "theta": 1.0},
    ],
    "fedce": [{}, {"mode": "times"}],
    "shapley": [{}, {"utility": "balanced_accuracy", "decay": 0.5}],
}
"""Those that make a difference to the code; a rule that is not here is tried with its defaults."""

NOT_ESTIMATING = {"fedavg", "fednova", "standalone"}
AT_TIMES_ESTIMATING = {"celm", "gtg_shapley"}
"""After warm-up, and where a round changed little, there is no score."""


@dataclass(frozen=True)
class Variant:
    name: str
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])

    @cached_property
    def rule(self) -> AnyRule:
        return rules.build(self.name, self.settings)

    def remembers(self, field: str) -> bool:
        return field in {each.name for each in fields(self.rule.state_type)}

    def federation(self, clients: Sequence[str] = ("a", "b"), probe_steps: int = 3) -> Federation:
        return Federation(self.rule, facts(clients, probe_steps), START, validate=validate)


ALL = [Variant(name, chosen) for name in rules.names() for chosen in SETTINGS.get(name, [{}])]
EVERY_RULE = pytest.mark.parametrize("name", rules.names())
EVERY_VARIANT = pytest.mark.parametrize("variant", ALL, ids=str)


REMOVING = {"cffl", "cffl-mode=paper-clip=100.0-theta=1.0"}


def removed_by(state: Any) -> set[str]:
    return set(getattr(state, "removed", ()))


def moves(seed: int, names: Sequence[str]) -> dict[str, Any]:
    """What clients do in a round: they move in about one direction, and say something of themselves."""
    rng = np.random.default_rng(seed)
    changes = 0.5 * rng.normal(size=(len(names), 5)) + [0.1, 0.5, 0.5, 0.5, 0.5]
    said = {
        "sizes": rng.integers(1, 50, len(names)).tolist(),
        "steps": rng.integers(1, 9, len(names)).tolist(),
        "examined": rng.uniform(size=len(names)).tolist(),
    }
    return {
        "changes": dict(zip(names, changes, strict=True)),
        **{key: dict(zip(names, values, strict=True)) for key, values in said.items()},
    }


def renamed(round: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {key: {names[name]: value for name, value in by.items()} for key, by in round.items()}


def among(round: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: {name: by[name] for name in names} for key, by in round.items()}


def history(seed: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Four rounds: all but the last client, all but the first, all of them twice."""
    rounds = [moves(10 * seed + number, names) for number in range(4)]
    return [among(rounds[0], names[:-1]), among(rounds[1], names[1:]), *rounds[2:]]


def opposed(round: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The same, with one client that works against all."""
    return {**round, "changes": {**round["changes"], name: np.full(5, -5.0)}}


def as_numbers(weighing: Weighing[Any]) -> dict[str, Mapping[str, float]]:
    return {
        "weights": weighing.weights,
        "standing": weighing.standing,
        **({} if weighing.scores is None else {"scores": weighing.scores}),
    }


# --- By name ------------------------------------------------------------------------------------------------


@EVERY_RULE
def test_it_is_built_by_name_with_its_defaults_and_says_what_it_is(name: str) -> None:
    assert rules.build(name, {}) == rules.load(name)()
    assert 20 < len(rules.summary(name)) < 120
    assert all(setting["about"] for setting in rules.settings(name))


@EVERY_RULE
def test_a_rule_that_judges_by_validation_data_says_so_where_there_is_none(name: str) -> None:
    federation = Federation(rules.build(name, {}), facts("ab"), START)
    if federation.rule.needs.validation and not federation.rule.needs.extras:
        with pytest.raises(CelmError, match="validation data"):
            federation.play(**moves(0, "ab"))
    else:
        assert on_simplex(federation.play(**moves(0, "ab")).weights)


# --- Clients and their names --------------------------------------------------------------------------------


MANY_ORDERS = {
    "gtg_shapley": {"convergence": 0.0, "tolerance": 0.0, "minimum": 600, "permutations": 600},
    "tmc_shapley": {"precision": 0.0, "tolerance": 0.0, "permutations": 600},
}
"""What is sampled depends on the order of names, the less the more there is of it."""


def close(variant: Variant) -> float:
    """How near results must be that are the same but for the order of sums, for samples, or for noise."""
    if variant.name in MANY_ORDERS:
        return 0.12
    return 2e-3 if variant.name == "celm" else 2e-5


def same_values(one: StateDict, other: StateDict) -> None:
    """But for counters, which come from the first of the heaviest."""
    for name, tensor in other.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(one[name], tensor, rtol=1e-4, atol=1e-4)


@EVERY_VARIANT
def test_permuting_clients_permutes_the_result(variant: Variant) -> None:
    variant = Variant(variant.name, MANY_ORDERS.get(variant.name, variant.settings))
    names = ["x1", "x2", "x10", "y"]
    for seed in range(2 if close(variant) > 1e-3 else 6):
        turned = dict(zip(names, np.random.default_rng(seed).permutation(names).tolist(), strict=True))
        here, there = variant.federation(names, 150), variant.federation(names, 150)
        for round in history(seed, names):
            one, other = here.play(**round), there.play(**renamed(round, turned))
            for kind, found in as_numbers(one).items():
                expected = {turned[name]: value for name, value in found.items()}
                assert as_numbers(other)[kind] == pytest.approx(expected, abs=close(variant)), kind
            if close(variant) < 1e-3:
                same_values(there.model, here.model)
                for name in names:
                    same_values(there.delivered(turned[name]), here.delivered(name))


@EVERY_VARIANT
def test_other_names_in_the_same_order_change_nothing(variant: Variant) -> None:
    names = ["a", "b", "c", "d"]
    new = dict(zip(names, ["client-2", "client-9", "client-10", "client-11"], strict=True))
    noisy = variant.name == "celm"  # a probe starts from noise that is drawn by name
    for seed in range(1 if noisy else 4):
        probe_steps = 150 if noisy else 3
        here, there = variant.federation(names, probe_steps), variant.federation([*new.values()], probe_steps)
        for round in history(seed, names):
            one, other = as_numbers(here.play(**round)), as_numbers(there.play(**renamed(round, new)))
            for kind, found in one.items():
                expected = {new[name]: value for name, value in found.items()}
                assert other[kind] == (pytest.approx(expected, abs=close(variant)) if noisy else expected)
            assert noisy or identical(here.model, there.model)


# --- Whatever clients send ----------------------------------------------------------------------------------

VALUE = st.sampled_from([0.0, 1.0, -1.0, 3e38, -3e38, 1e-45]) | st.floats(-10, 10, width=32)
CHANGE = st.sampled_from([[0.0] * 5, [1.0] * 5, [-1.0] * 5, [3e38] * 5, [-3e38] * 5]) | st.lists(
    VALUE, min_size=5, max_size=5
)
SIZE = st.integers(0, 3) | st.integers(0, 10**9)
CLIENT = st.tuples(CHANGE, SIZE, st.integers(0, 1000), st.none() | st.floats())
HISTORY = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "client-2", "client-10"]), CLIENT, min_size=1),
    min_size=1,
    max_size=4,
)


@EVERY_VARIANT
@settings(max_examples=25, deadline=None)
@given(clients_by_round=HISTORY)
def test_weights_and_standing_are_on_the_simplex_and_the_record_is_json(
    variant: Variant, clients_by_round: list[dict[str, Any]]
) -> None:
    federation = variant.federation()
    known = {"a", "b"} if variant.name == "celm" else set()
    removed: set[str] = set()
    for clients in clients_by_round:
        present = set(clients)
        said = zip(
            ("changes", "sizes", "steps", "examined"), zip(*clients.values(), strict=True), strict=True
        )
        weighing = federation.play(**{key: dict(zip(clients, values, strict=True)) for key, values in said})
        if federation.number == 1 and variant.name != "fednova":  # which stretches updates of few steps
            assert all(bool(tensor.isfinite().all()) for tensor in federation.model.values())
        known |= present
        for found, names in ((weighing.weights, present), (weighing.standing, known)):
            assert set(found) == names
            assert on_simplex(found)
        if weighing.scores is None:
            assert variant.name in NOT_ESTIMATING | AT_TIMES_ESTIMATING
        else:
            assert variant.name not in NOT_ESTIMATING
            assert set(weighing.scores) == present
            without_evidence = variant.name == "celm" and not any(weighing.scores.values())
            assert on_simplex(weighing.scores) or without_evidence
        json.dumps([weighing.diagnostics, weighing.evidence], allow_nan=False)

        # Who was removed stays so and counts for nothing, unless nobody else is there.
        assert removed <= removed_by(weighing.state)
        staying = present - (removed_by(weighing.state) if variant.name == "cffl" else removed)
        assert not staying or all(weighing.weights[name] == 0 for name in removed & present)
        removed = removed_by(weighing.state)
        assert all(weighing.standing[name] == 0 for name in removed)


# --- Memory -------------------------------------------------------------------------------------------------


@EVERY_VARIANT
def test_its_state_survives_being_saved_and_the_next_round_is_the_same(
    variant: Variant, tmp_path: Path
) -> None:
    names = ["a", "b", "c", "d"]
    federation = variant.federation(names)
    *first, last = history(5, names)
    for round in first:
        federation.play(**opposed(round, "c"))
    if variant.settings.get("patience") == 0 or str(variant) in REMOVING:
        assert federation.state.removed  # so that it was saved too
    restored = after_a_file(federation.state, federation.rule.state_type, tmp_path)
    assert identical(restored, federation.state)

    untouched = copy.deepcopy(federation.state)
    again = copy.copy(federation)
    again.state = restored
    assert all(identical(again.delivery(name), federation.delivery(name)) for name in [*names, "new"])
    assert identical(again.play(**last), federation.play(**last))
    assert identical(again.model, federation.model)
    assert all(identical(again.delivery(name), federation.delivery(name)) for name in names)
    assert identical(restored, untouched)


@EVERY_VARIANT
def test_absent_clients_keep_their_share_and_late_ones_join(variant: Variant) -> None:
    for seed in range(4):
        federation = variant.federation("abcd")
        before = federation.play(**moves(seed, "abcd")).standing
        # Nobody is new: those away keep to each other, and where a share of the whole is kept, keep theirs.
        second = federation.play(**moves(seed + 100, "bd"))
        third = federation.play(**moves(seed + 200, "bde"))
        assert set(second.weights) == set("bd")
        assert set(second.standing) == set(before) == set("abcd")
        assert set(third.weights) == set("bde")
        assert set(third.standing) == set("abcde")
        for after in (second.standing, third.standing):
            assert after["a"] * before["c"] == pytest.approx(after["c"] * before["a"])
        if variant.remembers("weights") and not removed_by(third.state):
            assert second.standing["a"] == pytest.approx(before["a"])
            assert third.standing["a"] == pytest.approx(before["a"] * 4 / 5)
