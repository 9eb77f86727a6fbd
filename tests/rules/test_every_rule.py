"""Properties of every rule.

Rules run on a model of five parameters that can be probed and has a head and buffers. Its accuracy on validation data
is a smooth function of its head. The numbers of each rule are tested in a separate file.
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
from celm.core.loss_derivatives import LossDerivatives, loss_derivatives
from celm.models.state_dict import StateDict
from celm.rules import rules
from celm.rules.messages import Validation
from celm.rules.rule import AnyRule, ProbeSettings, ServerContext, WeightingResult
from support.local_training import after_a_file
from support.rule_rounds import Federation, identical, on_simplex

CLASSES = 2
SAMPLES = 10**6  # of each class: a model that differs by rounding is one sample better at the most


class Net(nn.Module):
    """Logits are linear in the input, so that a probe ends at the same inputs from any start."""

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
    """Count more samples of a class as right for a larger weight and bias."""
    counts = []
    for model in models:
        level = (model["head.weight"][:, 0] + model["head.bias"]).double().sigmoid().nan_to_num()
        first, second = (level * SAMPLES).long().tolist()
        counts.append(torch.tensor([[first, SAMPLES - first], [SAMPLES - second, second]]))
    return counts


def differentiate(model: StateDict, direction: StateDict | None) -> LossDerivatives:
    """Differentiate the loss on one sample of each class."""
    return loss_derivatives(Net(), model, torch.tensor([[1.0], [-0.5]]), torch.tensor([0, 1]), direction)


VALIDATION = Validation(validate, differentiate)


def facts(clients: Sequence[str], probe_steps: int = 3) -> ServerContext:
    head = ("head.weight", "head.bias")
    return ServerContext(
        tuple(clients), CLASSES, (1,), 20, 7, Net(), head, ProbeSettings(probe_steps, 0.2, 0.5)
    )


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
    "coast": [{}, {"keep": 1.0, "horizon": 1}],
    "in_run": [{}, {"order": 2, "decay": 0.5}],
    "shapley": [{}, {"utility": "balanced_accuracy", "decay": 0.5}],
}
"""Settings with code of their own; other rules are tested with their defaults."""

NOT_ESTIMATING = {"fedavg", "fednova", "standalone"}
AT_TIMES_ESTIMATING = {"celm", "gtg_shapley", "coast"}
"""Without scores after the warm-up, in a round that changed little, or before later rounds are known."""
VALUED_LATER = {"coast"}
"""Later rounds change the values of clients that are absent from them."""


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
        return Federation(self.rule, facts(clients, probe_steps), START, validate=VALIDATION)


ALL = [Variant(name, chosen) for name in rules.names() for chosen in SETTINGS.get(name, [{}])]
EVERY_RULE = pytest.mark.parametrize("name", rules.names())
EVERY_VARIANT = pytest.mark.parametrize("variant", ALL, ids=str)


REMOVING = {"cffl", "cffl-mode=paper-clip=100.0-theta=1.0"}


def removed_by(state: Any) -> set[str]:
    return set(getattr(state, "removed", ()))


def moves(seed: int, names: Sequence[str]) -> dict[str, Any]:
    """Return a round in which clients move in similar directions and report sizes, steps and accuracies."""
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
    """Return four rounds: without the last client, without the first, and two with all clients."""
    rounds = [moves(10 * seed + number, names) for number in range(4)]
    return [among(rounds[0], names[:-1]), among(rounds[1], names[1:]), *rounds[2:]]


def opposed(round: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the round with one client that works against all others."""
    return {**round, "changes": {**round["changes"], name: np.full(5, -5.0)}}


def as_numbers(weighting: WeightingResult[Any]) -> dict[str, Mapping[str, float]]:
    return {
        "weights": weighting.aggregation_weights,
        "client_weights": weighting.client_weights,
        **({} if weighting.scores is None else {"scores": weighting.scores}),
    }


# --- By name ------------------------------------------------------------------------------------------------


@EVERY_RULE
def test_it_is_built_by_name_with_its_defaults_and_says_what_it_is(name: str) -> None:
    assert rules.build(name, {}) == rules.load(name)()
    assert 20 < len(rules.summary(name)) < 120
    assert all(setting["about"] for setting in rules.settings(name))


@EVERY_RULE
def test_a_rule_that_needs_validation_data_says_so_if_there_is_none(name: str) -> None:
    federation = Federation(rules.build(name, {}), facts("ab"), START)
    if federation.rule.requirements.validation and not federation.rule.requirements.extra_exchange:
        with pytest.raises(CelmError, match="validation data"):
            federation.play(**moves(0, "ab"))
    else:
        assert on_simplex(federation.play(**moves(0, "ab")).aggregation_weights)


# --- Clients and their names --------------------------------------------------------------------------------


MANY_ORDERS = {
    "gtg_shapley": {"convergence": 0.0, "tolerance": 0.0, "minimum": 600, "permutations": 600},
    "tmc_shapley": {"precision": 0.0, "tolerance": 0.0, "permutations": 600},
}
"""Sampled values depend on the order of names, and less so with more samples."""


def close(variant: Variant) -> float:
    """Return the tolerance for results that differ only by the order of sums, by samples or by noise."""
    if variant.name in MANY_ORDERS:
        return 0.12
    return 2e-3 if variant.name == "celm" else 2e-5


def same_values(one: StateDict, other: StateDict) -> None:
    """Compare floating tensors; counters come from the first client of largest weight."""
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
            for kind, result in as_numbers(one).items():
                expected = {turned[name]: value for name, value in result.items()}
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
            for kind, result in one.items():
                expected = {new[name]: value for name, value in result.items()}
                assert other[kind] == (pytest.approx(expected, abs=close(variant)) if noisy else expected)
            assert noisy or identical(here.model, there.model)


# --- Models that build on uploads ---------------------------------------------------------------------------


@EVERY_VARIANT
def test_a_client_gets_its_own_buffers_back_if_messages_build_on_uploads(variant: Variant) -> None:
    """Buffers have no direction: a client gets back either its own or the mean of all."""
    names = ["a", "b", "c"]
    federation = variant.federation(names)
    before = federation.delivered("a")
    changes = {name: [0.1, 0.2, 0.1, 0.2, 0.1, number] for number, name in enumerate(names, start=1)}
    federation.play(changes, sizes=dict.fromkeys(names, 5), examined=dict.fromkeys(names, 0.5))
    own_buffers = {name: float(before["mean"]) + number for number, name in enumerate(names, start=1)}
    received = {name: float(federation.delivered(name)["mean"]) for name in names}
    if variant.rule.continues_from_upload:
        assert received == own_buffers
    else:
        assert len(set(received.values())) == 1


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
def test_weights_are_on_the_simplex_and_the_record_is_json(
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
        weighting = federation.play(**{key: dict(zip(clients, values, strict=True)) for key, values in said})
        if federation.number == 1 and variant.name != "fednova":  # which stretches updates of few steps
            assert all(bool(tensor.isfinite().all()) for tensor in federation.model.values())
        known |= present
        for result, names in ((weighting.aggregation_weights, present), (weighting.client_weights, known)):
            assert set(result) == names
            assert on_simplex(result)
        if weighting.scores is None:
            assert variant.name in NOT_ESTIMATING | AT_TIMES_ESTIMATING
        else:
            assert variant.name not in NOT_ESTIMATING
            assert set(weighting.scores) == present
            without_evidence = variant.name == "celm" and not any(weighting.scores.values())
            assert on_simplex(weighting.scores) or without_evidence
        json.dumps([weighting.diagnostics, weighting.evidence], allow_nan=False)

        # A removed client stays removed and has no weight, unless no other client is present.
        assert removed <= removed_by(weighting.state)
        staying = present - (removed_by(weighting.state) if variant.name == "cffl" else removed)
        assert not staying or all(weighting.aggregation_weights[name] == 0 for name in removed & present)
        removed = removed_by(weighting.state)
        assert all(weighting.client_weights[name] == 0 for name in removed)


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
def test_absent_clients_keep_their_share_and_newcomers_join(variant: Variant) -> None:
    for seed in range(4):
        federation = variant.federation("abcd")
        before = federation.play(**moves(seed, "abcd")).client_weights
        # No client is new: absent clients keep their ratios, and their weights if the rule keeps weights.
        second = federation.play(**moves(seed + 100, "bd"))
        third = federation.play(**moves(seed + 200, "bde"))
        assert set(second.aggregation_weights) == set("bd")
        assert set(second.client_weights) == set(before) == set("abcd")
        assert set(third.aggregation_weights) == set("bde")
        assert set(third.client_weights) == set("abcde")
        if variant.name in VALUED_LATER:
            continue
        for after in (second.client_weights, third.client_weights):
            assert after["a"] * before["c"] == pytest.approx(after["c"] * before["a"])
        if variant.remembers("weights") and not removed_by(third.state):
            assert second.client_weights["a"] == pytest.approx(before["a"])
            assert third.client_weights["a"] == pytest.approx(before["a"] * 4 / 5)
