"""Accuracy from counts, against scikit-learn."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from celm.base.errors import CelmError
from celm.metrics.accuracy import compute_accuracy, count_confusions

PAIRS = st.integers(2, 6).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(
            st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=40
        ),
    )
)


@given(PAIRS)
def test_accuracies_are_scikit_learns(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    classes, pairs = drawn
    predicted, labels = (np.array(column) for column in zip(*pairs, strict=True))
    counts = count_confusions(torch.from_numpy(predicted), torch.from_numpy(labels), classes)
    assert counts.dtype is torch.int64
    np.testing.assert_array_equal(counts.numpy(), confusion_matrix(labels, predicted, labels=range(classes)))
    result = compute_accuracy(counts)
    with warnings.catch_warnings():
        # It warns of classes that are predicted but absent from the labels, and leaves them out, as we do.
        warnings.simplefilter("ignore", UserWarning)
        balanced = balanced_accuracy_score(labels, predicted)
    assert result.balanced_accuracy == pytest.approx(balanced, abs=1e-12)
    assert result.accuracy == pytest.approx(accuracy_score(labels, predicted), abs=1e-12)
    json.dumps(asdict(result), allow_nan=False)


def test_by_hand() -> None:
    counts = torch.tensor([[8, 2, 0, 0], [1, 1, 2, 0], [0, 0, 0, 0], [0, 0, 1, 0]])
    result = compute_accuracy(counts, rare_classes=(1, 2, 3))
    assert result.accuracy == 9 / 15
    assert result.per_class == (0.8, 0.25, None, 0.0)
    assert result.balanced_accuracy == pytest.approx((0.8 + 0.25 + 0.0) / 3)
    assert result.rare_class_accuracy == 0.125
    assert {type(value) for value in result.per_class} == {float, type(None)}


def test_no_rare_class_or_none_in_the_test_set_gives_none() -> None:
    counts = torch.tensor([[1, 0], [0, 0]])
    assert compute_accuracy(counts).rare_class_accuracy is None
    assert compute_accuracy(counts, rare_classes=(1,)).rare_class_accuracy is None


@given(PAIRS, st.integers(0, 40))
def test_counts_of_batches_add_up(drawn: tuple[int, list[tuple[int, int]]], cut: int) -> None:
    classes, pairs = drawn
    table = torch.tensor(pairs)
    whole = count_confusions(table[:, 0], table[:, 1], classes)
    parts = [count_confusions(part[:, 0], part[:, 1], classes) for part in (table[:cut], table[cut:])]
    assert torch.equal(whole, parts[0] + parts[1])


def test_an_empty_test_set_has_no_accuracy() -> None:
    with pytest.raises(CelmError, match="test set is empty"):
        compute_accuracy(torch.zeros(3, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("predicted", "labels"), [([2], [0]), ([0], [2]), ([-1], [0]), ([0], [-1]), ([0, 1], [0]), ([[0]], [[0]])]
)
def test_labels_out_of_range_are_refused(predicted: list[int], labels: list[int]) -> None:
    with pytest.raises(ValueError):
        count_confusions(torch.tensor(predicted), torch.tensor(labels), 2)
