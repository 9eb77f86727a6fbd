"""When the warm-up ends."""

from __future__ import annotations

import pytest

from celm.core.weights import ClientWeights
from celm.rules.celm import Celm
from celm.rules.celm_parts.warmup import FixedWarmup, UntilConverged, WarmupState, make_warmup

BEFORE = ClientWeights({"a": 0.5, "b": 0.5})


def shifted(change: float) -> ClientWeights:
    return ClientWeights({"a": 0.5 - change, "b": 0.5 + change})


def test_a_fixed_warm_up_ends_at_t_w_even_if_weights_do_not_change() -> None:
    warmup = FixedWarmup(5)
    state = warmup.update(WarmupState(), BEFORE, BEFORE, 4)
    assert state == WarmupState()
    assert warmup.last_round(state) == 5


@pytest.mark.parametrize(
    ("round_number", "change", "ends"),
    [(2, 0.0, False), (3, 0.009, True), (3, 0.011, False), (9, 0.01, True)],
)
def test_a_warm_up_ends_with_the_first_small_change_after_the_minimum(
    round_number: int, change: float, ends: bool
) -> None:
    warmup = UntilConverged(12, tolerance=0.01 + 1e-12, min_rounds=3)
    state = warmup.update(WarmupState(), BEFORE, shifted(change), round_number)
    assert state.ended_at == (round_number if ends else None)
    assert warmup.last_round(state) == (round_number if ends else 12)


def test_a_new_client_is_compared_with_the_mean_weight_at_which_it_starts() -> None:
    warmup = UntilConverged(12, tolerance=0.01, min_rounds=3)
    before, after = ClientWeights({"a": 1.0}), ClientWeights({"a": 0.5, "b": 0.5})
    assert warmup.update(WarmupState(), before, after, 5).ended_at == 5
    moved = ClientWeights({"a": 0.52, "b": 0.48})
    assert warmup.update(WarmupState(), before, moved, 5).ended_at is None


def test_a_tolerance_decides_which_warm_up_is_built() -> None:
    assert make_warmup(7, None, 3) == FixedWarmup(7)
    assert make_warmup(7, 0.01, 3) == UntilConverged(7, 0.01, 3)


@pytest.mark.parametrize(
    ("settings", "rounds", "expected"),
    [
        ({}, 30, 2),  # 5 % as in the paper
        ({}, 10, 1),
        ({"min_warmup": 5}, 30, 5),
        ({"min_warmup": 5}, 200, 10),
        ({"min_warmup": 5}, 4, 4),  # a federation that is too short warms up to its end
        ({"min_warmup": 5, "warmup": 2}, 30, 2),  # an explicit warm-up takes precedence
    ],
)
def test_min_warmup_is_a_floor_on_the_fraction(settings: dict[str, int], rounds: int, expected: int) -> None:
    assert Celm(**settings).local_head_rounds(rounds) == expected
