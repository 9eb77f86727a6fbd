"""CFFL against the steps of the source in their order, in both of its modes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from celm.core.weights import ClientWeights
from celm.models.state_dict import StateDict
from celm.rules.cffl import Cffl
from celm.rules.messages import RoundData
from support import rule_rounds

FACTS = rule_rounds.facts_of(rule_rounds.module_of(w=4))
START = {"w": torch.zeros(4), "mean": torch.zeros(1)}


def validate(models: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Count as many of 100 samples right as the first value of the model."""
    hits = [int(min(max(float(model["w"][0]), 0), 100)) for model in models]
    return [torch.tensor([[hit, 100 - hit], [0, 0]]) for hit in hits]


def a_round(
    number: int,
    clients: Mapping[str, Sequence[float]],
    sizes: Mapping[str, int] | None = None,
    start: dict[str, Tensor] = START,
    sent: Mapping[str, dict[str, Tensor]] | None = None,
) -> RoundData:
    """Build a round from client names and the w that they upload."""
    models: dict[str, StateDict] = {
        name: {"w": torch.tensor(w, dtype=torch.float32), "mean": torch.ones(1)}
        for name, w in clients.items()
    }
    return rule_rounds.a_round(start, models, number, sizes=sizes, sent=sent, validate=validate)


def accuracies(**percent: float) -> dict[str, list[float]]:
    return {name: [value, i, -i, 0] for i, (name, value) in enumerate(percent.items())}


def source(history: list[dict[str, float]], alpha: float = 5, kappa: float = 1 / 3) -> list[dict[str, float]]:
    """Return the source's reputations after every round, in its order of steps; all clients take part."""
    names = list(history[0])
    c, trusted, threshold = dict.fromkeys(names, 0.0), names, kappa / len(names)
    result = []
    for accuracy in history:
        total = sum(accuracy[i] for i in trusted)
        c = {i: 0.8 * c[i] + 0.2 * accuracy[i] / total if i in trusted else c[i] for i in names}
        c = {i: math.sinh(alpha * c[i]) for i in names}
        c = {i: c[i] / sum(c.values()) for i in names}
        left = [i for i in trusted if c[i] >= threshold]
        c = {i: 0.0 if c[i] < threshold else c[i] for i in names}
        if len(left) != len(trusted):
            c = {i: c[i] / sum(c.values()) for i in names}
            threshold = kappa / len(left)
        trusted = left
        result.append(c)
    return result


def test_the_first_round_by_hand() -> None:
    rule = Cffl()
    state = rule.init(FACTS)
    round = a_round(1, accuracies(a=80, b=40, c=20))
    weighting = rule.compute_weights(state, FACTS, round)
    # ĉ = 4/7, 2/7, 1/7; sinh of 5 · 0.2 ĉ, over their sum 1.035999
    expected = {"a": 0.582084, "b": 0.279553, "c": 0.138363}
    assert weighting.client_weights == pytest.approx(expected, abs=1e-5)
    assert weighting.aggregation_weights == weighting.client_weights
    assert weighting.scores == pytest.approx({"a": 4 / 7, "b": 2 / 7, "c": 1 / 7})
    assert weighting.diagnostics == {"accuracy": {"a": 0.8, "b": 0.4, "c": 0.2}, "removed": []}
    merged = rule.aggregate(state, round, weighting)
    assert merged["w"].tolist() == pytest.approx(
        [80 * 0.582084 + 40 * 0.279553 + 20 * 0.138363, 0.556279, -0.556279, 0], abs=1e-3
    )
    assert rule.message_for(weighting.state, merged, "a").model is merged


def test_reputations_over_rounds_follow_the_source() -> None:
    history = [{"a": 80.0, "b": 60 + t, "c": 40.0, "d": 10 + 9 * t} for t in range(8)]
    rule = Cffl()
    state = rule.init(FACTS)
    removed = False
    for number, (percent, expected) in enumerate(zip(history, source(history), strict=True), 1):
        weighting = rule.compute_weights(state, FACTS, a_round(number, accuracies(**percent)))
        assert weighting.client_weights == pytest.approx(expected, abs=1e-9)
        assert weighting.aggregation_weights == pytest.approx(expected, abs=1e-9)
        state = weighting.state
        removed = removed or bool(state.removed)
    assert removed  # so the order of removal and scaling was tried


def test_near_uniform_deviations_grow_by_the_stability_factor() -> None:
    for clients, alpha, grows in ((5, 5.0, True), (5, 10.0, True), (20, 5.0, False)):
        names = [f"client-{i}" for i in range(clients)]
        tilt = 1e-6
        c = {
            name: (1 + (tilt if i == 0 else -tilt / (clients - 1))) / clients for i, name in enumerate(names)
        }
        rule = Cffl(alpha=alpha)
        state = replace(rule.init(FACTS), weights=ClientWeights(c))
        weighting = rule.compute_weights(state, FACTS, a_round(2, {key: [50.0, 0, 0, 0] for key in names}))
        x = alpha / clients
        factor = (weighting.client_weights[names[0]] * clients - 1) / tilt
        assert factor == pytest.approx(0.8 * x / math.tanh(x), rel=1e-4)
        assert (factor > 1) is grows


def test_alpha_grows_to_its_double_with_decay() -> None:
    rule = Cffl(decay=True, threshold=0.0)
    history = accuracies(a=60, b=30)
    for number, alpha in ((1, 5.0), (6, 7.5)):
        weighting = rule.compute_weights(rule.init(FACTS), FACTS, a_round(number, history))
        high, low = math.sinh(alpha * 0.2 * 2 / 3), math.sinh(alpha * 0.2 / 3)
        assert weighting.client_weights["a"] == pytest.approx(high / (high + low))


def test_removal_is_for_good_and_the_removed_still_get_the_model() -> None:
    rule = Cffl()
    state = rule.init(FACTS)
    weighting = rule.compute_weights(state, FACTS, a_round(1, accuracies(a=90, b=90, c=5)))
    assert weighting.state.removed == ("c",)
    for number in range(2, 6):
        round = a_round(number, accuracies(a=10, b=10, c=100))
        weighting = rule.compute_weights(weighting.state, FACTS, round)
        assert weighting.aggregation_weights["c"] == weighting.client_weights["c"] == 0
    merged = rule.aggregate(state, round, weighting)
    assert merged["w"][0].item() == pytest.approx(10)
    assert rule.message_for(weighting.state, merged, "c").model is merged
    alone = a_round(6, accuracies(c=100))
    weighting = rule.compute_weights(weighting.state, FACTS, alone)
    assert weighting.aggregation_weights == {"c": 1.0}
    assert weighting.client_weights == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})
    assert rule.aggregate(weighting.state, alone, weighting) is START


def test_absent_clients_keep_their_reputation_and_newcomers_start_at_the_mean() -> None:
    rule = Cffl()
    first = rule.compute_weights(rule.init(FACTS), FACTS, a_round(1, accuracies(a=80, b=40)))
    second = rule.compute_weights(first.state, FACTS, a_round(2, accuracies(b=50, c=50)))
    assert second.client_weights["a"] == pytest.approx(first.client_weights["a"] * 2 / 3)
    # b and c share out what they hold: 2/3 b and 1/3, each faded towards half of it, then sharpened.
    b, c = first.client_weights["b"] * 2 / 3, 1 / 3
    sharp = [math.sinh(5 * (0.8 * x + 0.2 * (b + c) / 2)) for x in (b, c)]
    assert second.client_weights["b"] == pytest.approx((b + c) * sharp[0] / sum(sharp))
    assert sum(second.client_weights.values()) == pytest.approx(1)


def test_paper_mode_by_hand() -> None:
    rule = Cffl(mode="paper", clip=2.0, theta=0.5)
    state = rule.init(FACTS)
    round = a_round(1, {"a": [9, -1, 1.5, 0], "b": [1, 0.5, -3, 0.25]}, {"a": 4, "b": 2})
    weighting = rule.compute_weights(state, FACTS, round)
    # Clipped to [2, -1, 1.5, 0] and [1, .5, -2, .25]; uploads [2, 0, 1.5, 0] and [1, 0, -2, 0].
    assert weighting.diagnostics["accuracy"] == {"a": 0.02, "b": 0.01}
    high, low = math.sinh(5 * 0.2 * 2 / 3), math.sinh(5 * 0.2 / 3)
    c = {"a": high / (high + low), "b": low / (high + low)}
    assert weighting.client_weights == pytest.approx(c)
    assert weighting.aggregation_weights == {"a": 0.5, "b": 0.5}  # uploads are summed, all alike
    merged = rule.aggregate(state, round, weighting)
    assert merged["w"].tolist() == pytest.approx([3, 0, -0.5, 0])
    assert merged["mean"].tolist() == [1.0]
    # a gets all four values of the sum, b ⌊c_b / c_a · 2/4 · 4⌋ = ⌊.947⌋ = 0; each without its own upload.
    assert c["b"] / c["a"] * 2 == pytest.approx(0.947, abs=1e-3)
    assert rule.message_for(weighting.state, merged, "a").model["w"].tolist() == pytest.approx(
        [3, -1, -0.5, 0]
    )
    assert rule.message_for(weighting.state, merged, "b").model["w"].tolist() == pytest.approx(
        [0, 0.5, 0, 0.25]
    )
    assert rule.message_for(weighting.state, merged, "new").model is merged
    same = rule.compute_weights(
        state, FACTS, a_round(1, {"a": [9, -1, 1.5, 0], "b": [1, 0.5, -3, 0.25]}, {"a": 2, "b": 4})
    )
    # ⌊1.89⌋ = 1 value for b, and ⌊2⌋ for a
    assert rule.message_for(same.state, merged, "b").model["w"].tolist() == pytest.approx([3, 0.5, 0, 0.25])
    assert rule.message_for(same.state, merged, "a").model["w"].tolist() == pytest.approx([3, -1, -0.5, 0])


def test_paper_mode_continues_from_own_models_and_removed_clients_get_no_reward() -> None:
    rule = Cffl(mode="paper", clip=100.0, theta=1.0)
    state = rule.init(FACTS)
    first = a_round(1, {"a": [50, 0, 0, 0], "b": [1, 0, 0, 0]})
    weighting = rule.compute_weights(state, FACTS, first)
    assert weighting.state.removed == ("b",)
    merged = rule.aggregate(state, first, weighting)
    assert merged["w"].tolist() == [50, 0, 0, 0]
    assert rule.message_for(weighting.state, merged, "b").model["w"].tolist() == [1, 0, 0, 0]
    sent = {name: rule.message_for(weighting.state, merged, name).model for name in "ab"}
    second = a_round(2, {"a": [50, 7, 0, 0], "b": [3, 0, 0, 0]}, start=merged, sent=sent)
    later = rule.compute_weights(weighting.state, FACTS, second)
    assert later.diagnostics["accuracy"] == {"a": 0.5, "b": 0.03}  # θ = 1: of the clients' own models
    assert rule.aggregate(weighting.state, second, later)["w"].tolist() == [50, 7, 0, 0]
    assert rule.message_for(later.state, merged, "b").model["w"].tolist() == [3, 0, 0, 0]
