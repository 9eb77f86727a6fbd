"""Free-rider detection: z-scores, AUROC against scikit-learn, rates over thresholds."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import zscore
from sklearn.metrics import roc_auc_score

from celm.metrics.free_riders import (
    THRESHOLDS,
    auroc,
    detect_free_riders,
    flag_clients,
    mean_auroc,
    threshold_curves,
    z_scores,
)

VALUES = st.one_of(
    st.floats(-1e300, 1e300, allow_subnormal=False), st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.25])
)


def weights(values: list[float]) -> dict[str, float]:
    return {f"client-{i}": value for i, value in enumerate(values)}


ROUND = st.lists(VALUES, min_size=1, max_size=12).map(weights)
# Weights as they come, on a grid, so that scikit-learn and we agree on what is a tie.
GRID = st.lists(st.integers(-20, 20).map(lambda n: n / 16), min_size=2, max_size=12).map(weights)
RIDERS = st.sets(st.integers(0, 11).map(lambda i: f"client-{i}"))


@given(GRID)
def test_z_scores_are_scipys(contributions: dict[str, float]) -> None:
    assume(len(set(contributions.values())) > 1)
    result = list(z_scores(contributions).values())
    assert result == pytest.approx(zscore(list(contributions.values()), ddof=0), abs=1e-9)


@given(ROUND)
def test_no_z_score_passes_the_bound(contributions: dict[str, float]) -> None:
    bound = math.sqrt(len(contributions) - 1)
    assert all(abs(z) <= bound + 1e-9 for z in z_scores(contributions).values())
    assert flag_clients(contributions, -bound) == []


@pytest.mark.parametrize("clients", [2, 3, 5, 20])
@pytest.mark.parametrize("gap", [1.0, 1e-3, 2e-9])
def test_a_lone_outlier_reaches_the_bound(clients: int, gap: float) -> None:
    contributions = weights([1.0 - gap] + [1.0] * (clients - 1))
    bound = math.sqrt(clients - 1)
    assert z_scores(contributions)["client-0"] == pytest.approx(-bound, abs=1e-12)
    assert flag_clients(contributions, -bound) == []
    assert flag_clients(contributions, -bound + 1e-3) == ["client-0"]


@pytest.mark.parametrize(
    "values", [[0.1] * 3, [0.1, 0.1 + 1e-17, 0.1], [1 / 3, 1 - 2 / 3, 1 / 3], [0.0] * 4, [1.0]]
)
def test_equal_contributions_flag_no_client(values: list[float]) -> None:
    contributions = weights(values)
    assert set(z_scores(contributions).values()) == {0.0}
    assert flag_clients(contributions, 0.0) == []
    assert auroc(contributions, ["client-0"]) == (0.5 if len(values) > 1 else None)


def test_a_client_at_the_mean_is_not_below_it() -> None:
    for scale in (1 / 6, 1 / 7, 0.1, 1e-200):
        assert flag_clients(weights([scale, 2 * scale, 3 * scale]), 0.0) == ["client-0"]


def test_flagged_clients_come_in_client_order() -> None:
    contributions = {"client-10": 0.0, "client-2": 0.0, "client-1": 0.5, "client-3": 0.5}
    assert flag_clients(contributions, -0.5) == ["client-2", "client-10"]


@given(GRID, RIDERS)
def test_auroc_is_scikit_learns(contributions: dict[str, float], riders: set[str]) -> None:
    labels = [name in riders for name in contributions]
    result = auroc(contributions, riders)
    if all(labels) or not any(labels):
        assert result is None
    else:
        scores = [-value for value in contributions.values()]
        assert result == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
        assert result == pytest.approx(
            roc_auc_score(labels, [-z for z in z_scores(contributions).values()]), abs=1e-12
        )


def test_values_equal_up_to_rounding_are_a_tie() -> None:
    assert auroc({"f": 0.1 + 0.2, "a": 0.3, "b": 0.4}, ["f"]) == 0.75
    assert auroc({"f": 0.3, "a": 0.1 + 0.2, "b": 0.4}, ["f"]) == 0.75


@given(ROUND, RIDERS)
def test_negated_contributions_give_the_complement(contributions: dict[str, float], riders: set[str]) -> None:
    result = auroc(contributions, riders)
    negated = auroc({name: -value for name, value in contributions.items()}, riders)
    assert (result is None) == (negated is None)
    if result is not None and negated is not None:
        assert 0 <= result <= 1
        assert negated == pytest.approx(1 - result, abs=1e-12)


@given(st.lists(st.one_of(ROUND, st.just({})), max_size=4), RIDERS)
def test_detection_is_made_of_fractions_that_json_can_hold(
    rounds: list[dict[str, float]], riders: set[str]
) -> None:
    result = detect_free_riders(rounds, riders)
    json.dumps(asdict(result), allow_nan=False)
    for curve, mean in ((result.fpr_curve, result.fpr), (result.tpr_curve, result.tpr)):
        assert (curve is None) == (mean is None)
        if curve is not None:
            assert all(0 <= rate <= 1 for rate in curve)
            assert list(curve) == sorted(curve)  # a higher threshold flags no fewer
            assert len(curve) == len(result.thresholds) == 21


@given(st.lists(GRID, min_size=1, max_size=4), RIDERS, st.randoms())
def test_the_order_of_clients_does_not_matter(
    rounds: list[dict[str, float]], riders: set[str], random: object
) -> None:
    def shuffled(contributions: dict[str, float]) -> dict[str, float]:
        items = list(contributions.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    assert detect_free_riders(
        [shuffled(contributions) for contributions in rounds], riders
    ) == detect_free_riders(rounds, riders)


@given(st.lists(GRID, min_size=1, max_size=4), RIDERS, st.sampled_from([0.25, 8.0, 2.0**40]))
def test_scale_and_shift_do_not_matter(
    rounds: list[dict[str, float]], riders: set[str], scale: float
) -> None:
    moved = [{name: scale * (value + 3) for name, value in contributions.items()} for contributions in rounds]
    assert detect_free_riders(moved, riders) == detect_free_riders(rounds, riders)


def test_detection_by_hand() -> None:
    # z of the first round: -2, 1/2 four times. Second: the free-rider is in the middle of -sqrt 2 .. sqrt 2.
    rounds = [weights([0.0, 0.25, 0.25, 0.25, 0.25]), weights([0.3, 0.1, 0.2, 0.4, 0.5])]
    result = detect_free_riders(rounds, ["client-0"], thresholds=[-2.0, -1.0, -0.5, 0.0, 0.6])
    assert result.auroc_by_round == (1.0, 0.5)
    assert result.auroc == 0.75
    assert result.tpr_curve == (0.0, 0.5, 0.5, 0.5, 1.0)
    assert result.fpr_curve == (0.0, 0.125, 0.25, 0.25, 0.75)
    assert result.fpr == pytest.approx(1.375 / 5)
    assert result.tpr == pytest.approx(2.5 / 5)


def test_the_default_grid_is_21_steps_from_minus_2_to_0() -> None:
    assert tuple(np.linspace(-2, 0, 21)) == THRESHOLDS
    assert detect_free_riders([weights([0.0, 1.0])], ["client-0"]).thresholds == THRESHOLDS


def test_perfect_detection_of_one_in_five_is_capped_by_the_grid() -> None:
    result = detect_free_riders([weights([0.0, 0.25, 0.25, 0.25, 0.25])], ["client-0"])
    assert (result.auroc, result.fpr) == (1.0, 0.0)
    assert result.tpr == pytest.approx(20 / 21)  # z = -2 is not below -2


def test_means_are_over_the_rounds_that_define_them() -> None:
    rounds = [weights([0.0, 1.0]), {"client-1": 1.0}, {"client-0": 1.0}, {}]
    result = detect_free_riders(rounds, ["client-0"], thresholds=[0.0])
    assert result.auroc_by_round == (1.0, None, None, None)
    assert result.auroc == 1.0
    assert result.fpr_curve == (0.0,)  # rounds 0 and 1
    assert result.tpr_curve == (0.5,)  # rounds 0 and 2


def test_means_over_the_warm_up_are_those_of_its_rounds() -> None:
    rounds = [weights([0.4, 0.6]), weights([0.6, 0.4]), weights([0.6, 0.4]), weights([0.6, 0.4])]
    warm_up = detect_free_riders(rounds, ["client-0"], round_indices=range(2))
    alone = detect_free_riders(rounds[:2], ["client-0"])
    assert (warm_up.auroc, warm_up.fpr_curve, warm_up.tpr_curve) == (0.5, alone.fpr_curve, alone.tpr_curve)
    assert warm_up.auroc_by_round == (1.0, 0.0, 0.0, 0.0)
    assert detect_free_riders(rounds, ["client-0"]).auroc == 0.25
    assert detect_free_riders(rounds, ["client-0"], round_indices=iter(range(2))) == warm_up
    assert detect_free_riders(rounds, ["client-0"], round_indices=[]).auroc is None


def test_without_free_riders_or_honest_clients_measures_are_none() -> None:
    nobody = detect_free_riders([weights([0.4, 0.6])], [])
    assert (nobody.auroc, nobody.tpr, nobody.tpr_curve) == (None, None, None)
    assert nobody.fpr is not None
    everybody = detect_free_riders([weights([0.4, 0.6])], ["client-0", "client-1"])
    assert (everybody.auroc, everybody.fpr, everybody.fpr_curve) == (None, None, None)
    nothing = detect_free_riders([], ["client-0"])
    assert (nothing.auroc, nothing.fpr, nothing.tpr, nothing.auroc_by_round) == (None, None, None, ())
    assert mean_auroc([None, None]) is None
    assert threshold_curves([], ["client-0"]) == (None, None)


def test_curves_are_arrays_to_plot() -> None:
    fpr, tpr = threshold_curves([weights([0.0, 0.5, 0.5])], ["client-0"])
    assert isinstance(fpr, np.ndarray)
    assert isinstance(tpr, np.ndarray)
    assert fpr.shape == tpr.shape == (21,)


def test_invalid_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="'client-1'"):
        auroc(weights([0.1, math.nan]), ["client-0"])
    with pytest.raises(ValueError, match="thresholds"):
        detect_free_riders([weights([0.1, 0.9])], ["client-0"], thresholds=[math.nan])
    with pytest.raises(ValueError, match="thresholds"):
        detect_free_riders([weights([0.1, 0.9])], ["client-0"], thresholds=[])
    with pytest.raises(ValueError, match="round_indices"):
        detect_free_riders([weights([0.1, 0.9])], ["client-0"], round_indices=range(2))
