"""From scores to weights: the closed form of the smoothing, who comes, who goes, and the simplex."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.method.weights import Weights, normalised, warmup_rounds

NAMES = ["client-0", "client-1", "client-2", "client-10"]


@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, 1), (3, 1), (20, 1), (40, 2), (60, 3), (100, 5), (200, 10), (1000, 50)]
)
def test_warm_up_is_five_percent_and_at_least_one_round(rounds: int, expected: int) -> None:
    assert warmup_rounds(rounds) == expected


def test_warm_up_takes_another_fraction() -> None:
    assert warmup_rounds(100, 0.2) == 20


def test_the_first_clients_start_equal() -> None:
    assert Weights().knowing(["b", "a", "c"]).of == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}


def test_one_step_by_hand() -> None:
    weights = Weights({"a": 0.5, "b": 0.5}).smoothed({"a": 0.9, "b": 0.1}, beta=0.75)
    assert weights.of == pytest.approx({"a": 0.75 * 0.5 + 0.25 * 0.9, "b": 0.75 * 0.5 + 0.25 * 0.1})


@given(
    st.lists(st.tuples(*[st.integers(1, 100)] * 3), min_size=1, max_size=12),
    st.integers(0, 19).map(lambda n: Fraction(n, 20)),
)
def test_smoothing_is_the_sum_of_the_past_in_exact_arithmetic(
    history: list[tuple[int, int, int]], beta: Fraction
) -> None:
    """c(t) = β^t / N + (1 - β) Σ_s β^(t-s) c̄(s)."""
    shares = [[Fraction(entry, sum(row)) for entry in row] for row in history]
    weights, t = Weights().knowing("abc"), len(shares)
    for row in shares:
        scores = {name: float(share) for name, share in zip("abc", row, strict=True)}
        weights = weights.smoothed(scores, float(beta))
    for i, name in enumerate("abc"):
        past = sum((beta ** (t - s) * row[i] for s, row in enumerate(shares, 1)), Fraction(0))
        assert weights.of[name] == pytest.approx(float(beta**t / 3 + (1 - beta) * past), rel=1e-9)


def test_no_memory_takes_the_scores_as_they_are() -> None:
    weights = Weights({"a": 0.9, "b": 0.1}).smoothed({"a": 0.25, "b": 0.75}, beta=0.0)
    assert weights.of == pytest.approx({"a": 0.25, "b": 0.75})


@pytest.mark.parametrize("empty", [0.0, math.nan])
def test_scores_without_evidence_leave_the_weights(empty: float) -> None:
    before = Weights({"a": 0.9, "b": 0.1})
    assert before.smoothed({"a": 0.0, "b": empty}, beta=0.5).of == before.of


def test_scores_without_evidence_still_admit_newcomers() -> None:
    after = Weights({"a": 0.9, "b": 0.1}).smoothed({"c": 0.0}, beta=0.5)
    assert after.of == pytest.approx({"a": 0.6, "b": 0.1 / 1.5, "c": 0.5 / 1.5})


def test_present_clients_share_out_what_they_hold_and_the_absent_keep_theirs() -> None:
    """a and b hold .5 together, so a score of .8 aims at .4."""
    before = Weights({"a": 0.2, "b": 0.3, "c": 0.5})
    after = before.smoothed({"a": 0.8, "b": 0.2}, beta=0.5)
    assert after.of == pytest.approx({"a": 0.5 * 0.2 + 0.5 * 0.4, "b": 0.5 * 0.3 + 0.5 * 0.1, "c": 0.5})


def test_a_late_client_starts_at_the_mean_and_all_are_scaled() -> None:
    """Means of .6 and .2 and .2 is 1/3: one newcomer makes 4/3 in all, two make 5/3."""
    before = Weights({"a": 0.6, "b": 0.2, "c": 0.2})
    assert before.knowing(["d"]).of == pytest.approx({"a": 0.45, "b": 0.15, "c": 0.15, "d": 0.25})
    assert before.knowing(["e", "d"]).of == pytest.approx(
        {"a": 0.36, "b": 0.12, "c": 0.12, "d": 0.2, "e": 0.2}
    )


def test_a_late_client_is_admitted_before_it_is_scored() -> None:
    """Admitted at .5 / 1.5 = 1/3; a and c hold 2/3 then."""
    after = Weights({"a": 0.5, "b": 0.5}).smoothed({"a": 0.25, "c": 0.75}, beta=0.5)
    third = 1 / 3
    assert after.of == pytest.approx(
        {"a": 0.5 * third + 0.5 * (2 * third) * 0.25, "b": third, "c": 0.5 * third + 0.5 * (2 * third) * 0.75}
    )


def test_known_clients_are_not_admitted_again() -> None:
    weights = Weights({"a": 0.9, "b": 0.1})
    assert weights.knowing(["b", "a"]) is weights


def test_a_round_averages_with_the_weights_of_those_present() -> None:
    weights = Weights({"a": 0.6, "b": 0.3, "c": 0.1})
    assert weights.among(["c", "a"]) == pytest.approx({"a": 6 / 7, "c": 1 / 7})
    assert weights.among(["b"]) == {"b": 1.0}
    assert weights.among([]) == {}
    assert weights.of == {"a": 0.6, "b": 0.3, "c": 0.1}


def test_clients_who_hold_nothing_count_the_same() -> None:
    weights = Weights({"a": 1.0, "b": 0.0, "c": 0.0})
    assert weights.among(["b", "c"]) == {"b": 0.5, "c": 0.5}
    assert weights.smoothed({"b": 0.9, "c": 0.1}, beta=0.5).of == {"a": 1.0, "b": 0.0, "c": 0.0}


def test_weights_come_in_client_order() -> None:
    assert list(Weights().knowing(NAMES[::-1]).of) == NAMES
    assert list(Weights().knowing(NAMES).among(NAMES[::-1])) == NAMES


def test_steps_do_not_change_what_they_started_from() -> None:
    before = Weights({"a": 0.9, "b": 0.1})
    before.knowing(["c"]).smoothed({"a": 0.5, "b": 0.5}, beta=0.5)
    assert before.of == {"a": 0.9, "b": 0.1}


@pytest.mark.parametrize("weights", [{}, {"a": 0.0, "b": 0.0}, {"a": math.nan, "b": 1.0}])
def test_nothing_to_scale_is_uniform(weights: dict[str, float]) -> None:
    assert normalised(weights) == dict.fromkeys(weights, 0.5)


PRESENCE = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.just(0.0) | st.floats(0.01, 100), min_size=1), max_size=15
)


def play(rounds: list[dict[str, float]], beta: float) -> Weights:
    weights = Weights()
    for raw in rounds:
        total = math.fsum(raw.values())
        scores = {name: entry / total if total else 0.0 for name, entry in raw.items()}
        weights = weights.smoothed(scores, beta)
    return weights


@given(PRESENCE, st.floats(0, 0.99))
def test_weights_stay_on_the_simplex_whoever_comes_and_goes(
    rounds: list[dict[str, float]], beta: float
) -> None:
    weights = play(rounds, beta)
    assert set(weights.of) == {name for present in rounds for name in present}
    assert all(weight >= 0 for weight in weights.of.values())
    if rounds:
        assert math.fsum(weights.of.values()) == pytest.approx(1.0, abs=1e-9)
        used = weights.among(list(rounds[-1]))
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
    assert play(rounds, beta).of == play(shuffled, beta).of


@given(PRESENCE, st.floats(0, 0.99))
def test_renaming_clients_renames_weights(rounds: list[dict[str, float]], beta: float) -> None:
    renamed = dict(zip(NAMES, ["z", "y", "x", "w"], strict=True))
    other = play([{renamed[name]: entry for name, entry in raw.items()} for raw in rounds], beta)
    assert other.of == pytest.approx(
        {renamed[name]: weight for name, weight in play(rounds, beta).of.items()}
    )


def test_silence_costs_the_part_of_the_rounds_that_were_not_answered() -> None:
    weights = Weights({"a": 0.5, "b": 0.25, "c": 0.25})
    found = weights.attended(asked={"a": 4, "b": 4}, answered={"a": 2, "b": 4})
    # 0.25, 0.25 and, as nobody asked c, 0.25
    assert found.of == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert weights.attended({"a": 4}, {"a": 4}) == weights
