"""The test of class holders: by hand for rounds, by Student's bound for any replicates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from celm.core.class_holders import RoundEvidence, class_claims, class_holders
from celm.records.class_evidence import claims_from_records

NAN = math.nan
FIRST = {"a": [9.0, 9.0, 9.0], "b": [9.0, 9.0, 9.0]}
"""A first round, which says nothing."""


def rounds(*tables: dict[str, list[float]]) -> list[RoundEvidence]:
    return [RoundEvidence(table) for table in (FIRST, *tables)]


def test_the_bound_is_students_with_the_replicates_of_each_pair() -> None:
    """The first client has three replicates, the second two; six statements are made jointly."""
    values = np.array(
        [[[1.0, 3.0, 0.0], [1.0, 1.0, 0.0]], [[2.0, 3.1, 0.0], [1.1, 9.0, 0.0]], [[3.0, 2.9, 0.0], [NAN] * 3]]
    )
    holders = class_holders(values, 0.95, floor=0.5)
    assert holders is not None

    def lower(numbers: list[float]) -> float:
        quantile = stats.t.ppf(1 - 0.05 / 6, len(numbers) - 1)
        return float(np.mean(numbers) - quantile * stats.sem(numbers))

    assert lower([1.0, 2.0, 3.0]) < 0.5 < lower([3.0, 3.1, 2.9])
    assert lower([1.0, 1.1]) < 0.5
    assert holders.certain.tolist() == [[False, True, False], [False, False, False]]
    assert holders.possible.tolist() == [[True, True, False], [True, True, False]]


def test_evidence_counts_as_a_fraction_of_the_best_class_of_its_round() -> None:
    """Evidence grows tenfold from round to round: raw values would not be sure of anything."""
    tables = [{"a": [10.0**r, 2 * 10.0**r, 0.0], "b": [0.0, 0.0, 10.0**r]} for r in range(3)]
    claims = class_claims(rounds(*tables))
    assert claims is not None
    assert dict(claims.surely) == {"a": (0, 1), "b": (2,)}
    assert dict(claims.possibly) == {"a": (), "b": ()}
    assert claims.sole_evidence == {0: "a", 1: "a", 2: "b"}


def test_little_evidence_is_possible_and_ends_a_claim_to_be_alone() -> None:
    tables = [{"a": [1.0, 0.0, 0.0], "b": [0.09, 1.0, 0.0]}] * 4
    claims = class_claims(rounds(*tables))
    assert claims is not None
    assert claims.surely["b"] == (1,)
    assert claims.possibly["b"] == (0,)
    assert claims.sole_evidence == {1: "b"}


def test_noise_of_one_round_is_not_sure() -> None:
    tables = [{"a": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.8 if r == 2 else 0.0]} for r in range(4)]
    claims = class_claims(rounds(*tables))
    assert claims is not None
    assert claims.surely["b"] == (1,)
    assert claims.possibly["b"] == (2,)
    assert 2 not in claims.sole_evidence


def test_fewer_than_two_rounds_after_the_first_make_no_claim() -> None:
    table = {"a": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.0]}
    assert class_claims([]) is None
    assert class_claims(rounds()) is None
    assert class_claims(rounds(table)) is None
    assert class_claims(rounds(table, table)) is not None


def test_a_late_client_holds_nothing_surely_but_counts_against_others() -> None:
    table = {"a": [1.0, 0.0, 0.5]}
    claims = class_claims(rounds(table, table, {**table, "late": [0.0, 1.0, 0.7]}))
    assert claims is not None
    assert claims.surely == {"a": (0, 2), "late": ()}
    assert claims.possibly["late"] == (1, 2)
    assert claims.sole_evidence == {0: "a"}


def test_a_client_of_the_first_round_only_is_not_tested() -> None:
    table = {"a": [1.0, 0.0, 0.0]}
    claims = class_claims(rounds(table, table))
    assert claims is not None
    assert "b" not in claims.surely


def test_an_update_without_training_has_no_evidence() -> None:
    """The model that was sent shows the classes of everybody."""
    table = {"a": [1.0, 0.5, 0.0], "rider": [1.0, 1.0, 1.0]}
    lines = [{"evidence": table, "flags": {"rider": {"unchanged": "as sent"}}, "diagnostics": {}}] * 4
    claims = claims_from_records(lines)
    assert claims is not None
    assert claims.surely == {"a": (0, 1), "rider": ()}
    assert claims.possibly["rider"] == ()
    assert claims.sole_evidence == {0: "a", 1: "a"}


def test_classes_that_a_round_did_not_probe_are_not_replicates() -> None:
    """Class 2 was probed once after the first round; its value is repeated in the records."""
    table = {"a": [1.0, 0.5, 0.4], "b": [0.0, 1.0, 0.0]}
    lines = [
        {"evidence": table, "diagnostics": {"probed": probed}} for probed in ([0, 1, 2], [0, 1], [0, 1, 2])
    ]
    claims = claims_from_records(lines)
    assert claims is not None
    assert claims.surely["a"] == (0, 1)
    assert claims.possibly["a"] == (2,)


def test_records_of_an_observer_and_rounds_without_a_probe() -> None:
    table = {"a": [1.0, 0.0], "b": [0.0, 1.0]}
    observed = {"evidence": None, "observed": {"celm": {"evidence": table, "diagnostics": {}}}}
    later = {"evidence": None, "observed": {"celm": {"evidence": None, "diagnostics": {}}}}
    claims = claims_from_records([observed, later, observed, observed], "celm")
    assert claims is not None
    assert claims.sole_evidence == {0: "a", 1: "b"}
    assert claims_from_records([observed, later, observed, observed]) is None


@given(
    st.lists(
        st.lists(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), min_size=2, max_size=2),
        min_size=3,
        max_size=6,
    )
)
def test_claims_are_consistent(tables: list[list[list[float]]]) -> None:
    claims = class_claims([RoundEvidence(dict(zip("ab", table, strict=True))) for table in tables])
    assert claims is not None
    for index, client in enumerate("ab"):
        ever = {k for table in tables[1:] for k, q in enumerate(table[index]) if q > 0}
        assert {*claims.surely[client], *claims.possibly[client]} <= ever
        assert not set(claims.surely[client]) & set(claims.possibly[client])
    for k, holder in claims.sole_evidence.items():
        other = "b" if holder == "a" else "a"
        assert k in claims.surely[holder]
        assert all(table["ab".index(other)][k] == 0 for table in tables[1:])


def test_independent_noise_is_rarely_called_sure() -> None:
    """Student's bound holds jointly for normal replicates: 200 tables of 50 statements, at most 5 % with an error."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        holders = class_holders(rng.normal(size=(4, 5, 10)), 0.95)
        assert holders is not None
        wrong += bool(holders.certain.any())
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)
    assert class_holders(np.full((1, 5, 10), 1.0), 0.95) is None


@pytest.mark.parametrize("shape", [(0, 2, 3), (3, 0, 3)])
def test_no_replicates_and_no_clients(shape: tuple[int, ...]) -> None:
    assert class_holders(np.zeros(shape), 0.95) is None
