"""Weights against the closed form of the smoothing, with clients that join and leave."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.core.weights import ClientWeights, normalise_weights, warmup_rounds

NAMES = ["client-0", "client-1", "client-2", "client-10"]


@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, 1), (3, 1), (20, 1), (40, 2), (60, 3), (100, 5), (200, 10), (1000, 50)]
)
def test_warm_up_is_five_percent_and_at_least_one_round(rounds: int, expected: int) -> None:
    assert warmup_rounds(rounds) == expected


def test_warm_up_takes_another_fraction() -> None:
    assert warmup_rounds(100, 0.2) == 20


def test_the_first_clients_start_equal() -> None:
    assert ClientWeights().with_clients(["b", "a", "c"]).by_client == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}


def test_one_step_by_hand() -> None:
    weights = ClientWeights({"a": 0.5, "b": 0.5}).smooth({"a": 0.9, "b": 0.1}, beta=0.75)
    assert weights.by_client == pytest.approx({"a": 0.75 * 0.5 + 0.25 * 0.9, "b": 0.75 * 0.5 + 0.25 * 0.1})


@given(
    st.lists(st.tuples(*[st.integers(1, 100)] * 3), min_size=1, max_size=12),
    st.integers(0, 19).map(lambda n: Fraction(n, 20)),
)
def test_smoothing_is_the_sum_of_the_past_in_exact_arithmetic(
    history: list[tuple[int, int, int]], beta: Fraction
) -> None:
    """c(t) = β^t / N + (1 - β) Σ_s β^(t-s) c̄(s)."""
    shares = [[Fraction(entry, sum(row)) for entry in row] for row in history]
    weights, t = ClientWeights().with_clients("abc"), len(shares)
    for row in shares:
        scores = {name: float(share) for name, share in zip("abc", row, strict=True)}
        weights = weights.smooth(scores, float(beta))
    for i, name in enumerate("abc"):
        past = sum((beta ** (t - s) * row[i] for s, row in enumerate(shares, 1)), Fraction(0))
        assert weights.by_client[name] == pytest.approx(float(beta**t / 3 + (1 - beta) * past), rel=1e-9)


def test_with_beta_0_weights_are_the_scores() -> None:
    weights = ClientWeights({"a": 0.9, "b": 0.1}).smooth({"a": 0.25, "b": 0.75}, beta=0.0)
    assert weights.by_client == pytest.approx({"a": 0.25, "b": 0.75})


@pytest.mark.parametrize("empty", [0.0, math.nan])
def test_scores_of_zero_leave_the_weights_unchanged(empty: float) -> None:
    before = ClientWeights({"a": 0.9, "b": 0.1})
    assert before.smooth({"a": 0.0, "b": empty}, beta=0.5).by_client == before.by_client


def test_scores_of_zero_still_add_new_clients() -> None:
    after = ClientWeights({"a": 0.9, "b": 0.1}).smooth({"c": 0.0}, beta=0.5)
    assert after.by_client == pytest.approx({"a": 0.6, "b": 0.1 / 1.5, "c": 0.5 / 1.5})


def test_present_clients_divide_their_total_weight_and_absent_ones_keep_theirs() -> None:
    """a and b have 0.5 together, so a score of 0.8 means 0.4."""
    before = ClientWeights({"a": 0.2, "b": 0.3, "c": 0.5})
    after = before.smooth({"a": 0.8, "b": 0.2}, beta=0.5)
    assert after.by_client == pytest.approx(
        {"a": 0.5 * 0.2 + 0.5 * 0.4, "b": 0.5 * 0.3 + 0.5 * 0.1, "c": 0.5}
    )


def test_a_late_client_starts_at_the_mean_and_all_are_scaled() -> None:
    """The mean of 0.6, 0.2, 0.2 is 1/3: with one new client the sum is 4/3, with two 5/3."""
    before = ClientWeights({"a": 0.6, "b": 0.2, "c": 0.2})
    assert before.with_clients(["d"]).by_client == pytest.approx({"a": 0.45, "b": 0.15, "c": 0.15, "d": 0.25})
    assert before.with_clients(["e", "d"]).by_client == pytest.approx(
        {"a": 0.36, "b": 0.12, "c": 0.12, "d": 0.2, "e": 0.2}
    )


def test_a_late_client_is_added_before_it_is_scored() -> None:
    """c is added at 0.5 / 1.5 = 1/3; a and c then have 2/3."""
    after = ClientWeights({"a": 0.5, "b": 0.5}).smooth({"a": 0.25, "c": 0.75}, beta=0.5)
    third = 1 / 3
    assert after.by_client == pytest.approx(
        {"a": 0.5 * third + 0.5 * (2 * third) * 0.25, "b": third, "c": 0.5 * third + 0.5 * (2 * third) * 0.75}
    )


def test_known_clients_are_not_added_again() -> None:
    weights = ClientWeights({"a": 0.9, "b": 0.1})
    assert weights.with_clients(["b", "a"]) is weights


def test_a_round_aggregates_with_the_weights_of_the_present_clients() -> None:
    weights = ClientWeights({"a": 0.6, "b": 0.3, "c": 0.1})
    assert weights.restricted_to(["c", "a"]) == pytest.approx({"a": 6 / 7, "c": 1 / 7})
    assert weights.restricted_to(["b"]) == {"b": 1.0}
    assert weights.restricted_to([]) == {}
    assert weights.by_client == {"a": 0.6, "b": 0.3, "c": 0.1}


def test_present_clients_without_weight_are_aggregated_equally() -> None:
    weights = ClientWeights({"a": 1.0, "b": 0.0, "c": 0.0})
    assert weights.restricted_to(["b", "c"]) == {"b": 0.5, "c": 0.5}
    assert weights.smooth({"b": 0.9, "c": 0.1}, beta=0.5).by_client == {"a": 1.0, "b": 0.0, "c": 0.0}


def test_weights_come_in_client_order() -> None:
    assert list(ClientWeights().with_clients(NAMES[::-1]).by_client) == NAMES
    assert list(ClientWeights().with_clients(NAMES).restricted_to(NAMES[::-1])) == NAMES


def test_updates_leave_the_earlier_weights_unchanged() -> None:
    before = ClientWeights({"a": 0.9, "b": 0.1})
    before.with_clients(["c"]).smooth({"a": 0.5, "b": 0.5}, beta=0.5)
    assert before.by_client == {"a": 0.9, "b": 0.1}


@pytest.mark.parametrize("weights", [{}, {"a": 0.0, "b": 0.0}, {"a": math.nan, "b": 1.0}])
def test_weights_that_sum_to_zero_become_uniform(weights: dict[str, float]) -> None:
    assert normalise_weights(weights) == dict.fromkeys(weights, 0.5)


PRESENCE = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.just(0.0) | st.floats(0.01, 100), min_size=1), max_size=15
)


def smooth_all(rounds: list[dict[str, float]], beta: float) -> ClientWeights:
    weights = ClientWeights()
    for raw in rounds:
        total = math.fsum(raw.values())
        scores = {name: entry / total if total else 0.0 for name, entry in raw.items()}
        weights = weights.smooth(scores, beta)
    return weights


@given(PRESENCE, st.floats(0, 0.99))
def test_weights_stay_on_the_simplex_as_clients_join_and_leave(
    rounds: list[dict[str, float]], beta: float
) -> None:
    weights = smooth_all(rounds, beta)
    assert set(weights.by_client) == {name for present in rounds for name in present}
    assert all(weight >= 0 for weight in weights.by_client.values())
    if rounds:
        assert math.fsum(weights.by_client.values()) == pytest.approx(1.0, abs=1e-9)
        used = weights.restricted_to(list(rounds[-1]))
        assert math.fsum(used.values()) == pytest.approx(1.0, abs=1e-9)
        assert all(weight >= 0 for weight in used.values())


@given(PRESENCE, st.floats(0, 0.99), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter_to_the_last_bit(
    rounds: list[dict[str, float]], beta: float, random: object
) -> None:
    shuffled = []
    for present in rounds:
        names = list(present)
        random.shuffle(names)
        shuffled.append({name: present[name] for name in names})
    assert smooth_all(rounds, beta).by_client == smooth_all(shuffled, beta).by_client


@given(PRESENCE, st.floats(0, 0.99))
def test_renaming_clients_renames_weights(rounds: list[dict[str, float]], beta: float) -> None:
    renamed = dict(zip(NAMES, ["z", "y", "x", "w"], strict=True))
    other = smooth_all([{renamed[name]: entry for name, entry in raw.items()} for raw in rounds], beta)
    assert other.by_client == pytest.approx(
        {renamed[name]: weight for name, weight in smooth_all(rounds, beta).by_client.items()}
    )


def test_weights_are_scaled_by_the_response_rate() -> None:
    weights = ClientWeights({"a": 0.5, "b": 0.25, "c": 0.25})
    scaled = weights.scale_by_response_rate(requests={"a": 4, "b": 4}, replies={"a": 2, "b": 4})
    # 0.25, 0.25, and 0.25 for c, which had no request
    assert scaled.by_client == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert weights.scale_by_response_rate({"a": 4}, {"a": 4}) == weights
