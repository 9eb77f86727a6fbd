"""Evidence, shares and scores: numbers worked out on paper, every degenerate case, and properties."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from celm.core.evidence import bias, evidence, nonfinite_clients, scores, shares

NAN, INF = math.nan, math.inf


def doubles(rows: list[list[float]] | list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


LOGITS = st.floats(-1e6, 1e6, width=32)


AMOUNTS = st.just(0.0) | st.floats(1e-3, 1e6)


@st.composite
def matrices(draw: st.DrawFn, entries: st.SearchStrategy[float] = AMOUNTS) -> Tensor:
    """Evidence `[N, K]`, with zeros often enough that whole rows and columns are zero."""
    clients, classes = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    row = st.lists(entries, min_size=classes, max_size=classes)
    return doubles(draw(st.lists(row, min_size=clients, max_size=clients)))


def test_the_worked_example() -> None:
    """b = 2; Q, R and c̄ in fractions."""
    Q = evidence(doubles([[3, 1, 6], [5, 2, 2], [2, 1, 4]]), doubles([0, 2, 4]))
    assert Q.tolist() == [[1, 0, 4], [3, 0, 0], [0, 0, 2]]
    expected_shares = [
        [Fraction(1, 4), 0, Fraction(2, 3)],
        [Fraction(3, 4), 0, 0],
        [0, 0, Fraction(1, 3)],
    ]
    assert shares(Q).flatten().tolist() == pytest.approx(
        [float(x) for row in expected_shares for x in row], abs=1e-11
    )
    # The class without evidence counts for no client: the mean shares sum to 2/3 and are scaled up to 1.
    means = [sum(row, Fraction(0)) / 3 for row in expected_shares]
    assert sum(means) == Fraction(2, 3)
    assert scores(Q).tolist() == pytest.approx([float(x / sum(means)) for x in means], abs=1e-11)


def test_the_level_is_the_mean_of_the_global_logits_not_class_by_class() -> None:
    assert bias(torch.tensor([-1.0, 2.0, 5.0])).item() == 2.0
    Q = evidence(doubles([[3.0, 3.0]]), doubles([0.0, 4.0]))
    assert Q.tolist() == [[1.0, 1.0]]


def test_results_are_float64_for_any_dtype() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64):
        Q = evidence(torch.tensor([[3, 1]]).to(dtype), torch.tensor([1, 1]).to(dtype))
        assert (Q.dtype, shares(Q.float()).dtype, scores(Q.float()).dtype) == (torch.float64,) * 3
        assert Q.tolist() == [[2.0, 0.0]]


def test_the_level_is_summed_in_float64() -> None:
    """In float32, 2^24 + 1 is 2^24: the ones would be lost."""
    assert bias(torch.tensor([2.0**24, 1.0, 1.0, 1.0])).item() == (2**24 + 3) / 4


# --- degenerate cases ---------------------------------------------------------------------------------------


def test_a_class_without_evidence_has_no_shares() -> None:
    assert shares(doubles([[1, 0], [3, 0]]))[:, 1].tolist() == [0, 0]


def test_no_evidence_at_all_scores_zero() -> None:
    Q = evidence(doubles([[1, 1], [0, 1]]), doubles([1, 1]))
    assert Q.tolist() == [[0, 0], [0, 0]]
    assert shares(Q).tolist() == [[0, 0], [0, 0]]
    assert scores(Q).tolist() == [0, 0]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_client_with_a_logit_that_is_not_finite_has_no_evidence(bad: float) -> None:
    logits = doubles([[5, 9], [bad, 9], [4, 3]])
    assert nonfinite_clients(logits).tolist() == [False, True, False]
    Q = evidence(logits, doubles([3, 3]))
    assert Q.tolist() == [[2, 6], [0, 0], [1, 0]]
    rest = scores(evidence(logits[[0, 2]], doubles([3, 3]))).tolist()
    assert scores(Q).tolist() == [rest[0], 0, rest[1]]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_if_a_global_logit_is_not_finite_no_client_has_evidence(bad: float) -> None:
    Q = evidence(torch.tensor([[5.0, 9.0], [1.0, 2.0]]), torch.tensor([bad, 1.0]))
    assert Q.tolist() == [[0, 0], [0, 0]]
    assert Q.dtype is torch.float64


def test_opposite_infinities_of_the_global_model_do_not_cancel() -> None:
    assert evidence(doubles([[5, 9]]), doubles([INF, -INF])).tolist() == [[0, 0]]


def test_without_clients_there_are_no_scores() -> None:
    assert scores(torch.zeros(0, 3)).tolist() == []


def test_a_single_client_has_score_1() -> None:
    assert scores(doubles([[0, 2, 0]])).tolist() == [1.0]


def test_the_largest_float32_logits_do_not_overflow() -> None:
    huge = torch.full((5, 10), torch.finfo(torch.float32).max)
    Q = evidence(huge, -huge[0])
    assert bool(Q.isfinite().all())
    assert shares(Q).flatten().tolist() == pytest.approx([0.2] * 50)
    assert scores(Q).tolist() == pytest.approx([0.2] * 5)


# --- what the paper expects ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "classes", "rare"), [(5, 10, 3), (5, 10, 2), (3, 7, 1), (8, 10, 9)])
def test_an_ideal_maverick_weighs_its_exclusive_classes(clients: int, classes: int, rare: int) -> None:
    """r exclusive of K classes: r/K for the Maverick, (K - r) / (K (N - 1)) for each of the others."""
    Q = torch.zeros(clients, classes)
    Q[0, :rare] = 7.0
    Q[1:, rare:] = 2.0
    others = (classes - rare) / (classes * (clients - 1))
    assert scores(Q).tolist() == pytest.approx([rare / classes, *[others] * (clients - 1)])


def test_a_client_with_large_logits_does_not_dominate_the_classes_of_others() -> None:
    """Normalising class by class: a logit that is 1000 times larger gains no more than its class."""
    quiet, loud = doubles([[1, 0], [0, 1]]), doubles([[1000, 0], [0, 1]])
    torch.testing.assert_close(scores(quiet), scores(loud))


# --- properties ---------------------------------------------------------------------------------------------


@given(matrices())
def test_columns_of_shares_sum_to_one_or_to_zero(Q: Tensor) -> None:
    for column, total in zip(Q.T, shares(Q).sum(dim=0).tolist(), strict=True):
        assert total == pytest.approx(1.0 if bool(column.any()) else 0.0, abs=1e-8)


@given(matrices())
def test_scores_are_on_the_simplex_or_zero(Q: Tensor) -> None:
    result = scores(Q)
    assert bool((result >= 0).all())
    assert result.sum().item() == pytest.approx(1.0 if bool(Q.any()) else 0.0)
    assert all(result[i] == 0 for i in range(len(Q)) if not Q[i].any())


@given(matrices(), st.randoms(use_true_random=False))
def test_permuting_clients_permutes_and_permuting_classes_does_nothing(Q: Tensor, random: object) -> None:
    clients, classes = list(range(Q.shape[0])), list(range(Q.shape[1]))
    random.shuffle(clients)
    random.shuffle(classes)
    torch.testing.assert_close(shares(Q[clients][:, classes]), shares(Q)[clients][:, classes])
    torch.testing.assert_close(scores(Q[clients][:, classes]), scores(Q)[clients])


@given(matrices(LOGITS), st.data())
def test_evidence_permutes_with_clients_and_classes(logits: Tensor, data: st.DataObject) -> None:
    level = doubles(data.draw(st.lists(LOGITS, min_size=logits.shape[1], max_size=logits.shape[1])))
    clients = data.draw(st.permutations(range(logits.shape[0])))
    classes = data.draw(st.permutations(range(logits.shape[1])))
    moved = evidence(logits[clients][:, classes], level[classes])
    torch.testing.assert_close(moved, evidence(logits, level)[clients][:, classes], rtol=1e-9, atol=1e-6)


@given(matrices(st.integers(-1000, 1000)), st.data())
def test_adding_a_constant_to_all_logits_changes_nothing(logits: Tensor, data: st.DataObject) -> None:
    entries = st.lists(st.integers(-1000, 1000), min_size=logits.shape[1], max_size=logits.shape[1])
    level, raised = doubles(data.draw(entries)), data.draw(st.integers(-(10**6), 10**6))
    torch.testing.assert_close(
        evidence(logits + raised, level + raised), evidence(logits, level), rtol=0, atol=1e-9
    )


@given(matrices(), st.floats(0.1, 10))
def test_the_unit_of_evidence_does_not_matter(Q: Tensor, unit: float) -> None:
    torch.testing.assert_close(scores(unit * Q), scores(Q), rtol=1e-6, atol=1e-7)


@given(matrices())
def test_merged_clients_have_the_sum_of_their_scores(Q: Tensor) -> None:
    merged = torch.cat([Q[:1] + Q[1:].sum(dim=0, keepdim=True), torch.zeros(1, Q.shape[1])])
    assert scores(merged)[0].item() == pytest.approx(scores(Q).sum().item())
    assert scores(torch.cat([Q, torch.zeros(1, Q.shape[1])]))[:-1].tolist() == scores(Q).tolist()
