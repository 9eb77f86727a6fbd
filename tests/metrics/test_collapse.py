"""The test of collapse on sequences whose verdict is known."""

from __future__ import annotations

import math
import random

import pytest

from celm.metrics.collapse import Collapse, find_collapses, is_accuracy, stays_at_chance


def rounds(*values: float) -> dict[int, float]:
    return dict(enumerate(values, start=1))


@pytest.mark.parametrize(
    ("values", "classes", "first"),
    [
        ((0.61, 0.74, 0.79, 0.0985), 10, 4),  # one evaluation at chance
        ((0.1, 0.75, 0.1), 10, 3),  # a fast rise before is no noise
        ((61.0, 74.0, 79.0, 9.85), 10, 4),  # percent
        ((0.7, 0.8, 0.82, 0.4, 0.42, 0.41), 10, 4),  # less than half of the gain is left, three times
        ((0.8, 0.9, 0.52), 2, 3),  # chance is one half
        ((0.15, 0.25, 0.3, 0.012), 100, 4),
        ((0.3, 0.6, 0.2, 0.6, 0.3, 0.65, 0.1, 0.1, 0.1), 10, 7),  # at chance to stay, whatever the noise
    ],
)
def test_a_collapse_is_found_where_it_begins(values: tuple[float, ...], classes: int, first: int) -> None:
    found = find_collapses(rounds(*values), classes)
    assert [collapse.round for collapse in found] == [first]
    assert found[0].value == values[first - 1]
    assert found[0].best == max(values[: first - 1]) == values[found[0].best_round - 1]
    assert found[0].recovered is None


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ((), 10),
        ((0.8, 0.1), 10),  # one earlier evaluation is not enough
        ((0.1, 0.12, 0.15, 0.1, 0.09), 10),  # never clearly above chance
        ((0.7, 0.8, 0.82, 0.4, 0.42, 0.8), 10),  # low twice, then as before
        ((0.3, 0.6, 0.2, 0.6, 0.1, 0.65), 10),  # a fall to chance where falls of 0.4 are usual
        ((0.9, 0.92, 0.75, 0.74, 0.73), 2),  # more than half of the gain is left
        ((1.0, 1.0, 0.0, 0.0), 1),  # one class has no chance level
    ],
)
def test_noise_is_not_a_collapse(values: tuple[float, ...], classes: int) -> None:
    assert find_collapses(rounds(*values), classes) == []


def test_a_collapse_ends_and_another_may_follow() -> None:
    values = rounds(0.7, 0.8, 0.1, 0.2, 0.6, 0.7, 0.1)
    assert find_collapses(values, 10) == [Collapse(3, 0.1, 2, 0.8, recovered=5), Collapse(7, 0.1, 2, 0.8)]


def test_what_was_found_is_not_taken_back_by_later_rounds() -> None:
    """So that a warning is logged once: what holds for the first rounds holds for more of them."""
    draw = random.Random(3)
    for _ in range(200):
        values = [draw.choice([0.1, 0.3, 0.5, 0.8]) * draw.uniform(0.9, 1.1) for _ in range(12)]
        before: list[tuple[int, int]] = []
        for length in range(1, 13):
            found = [(c.round, c.best_round) for c in find_collapses(rounds(*values[:length]), 10)]
            assert found[: len(before)] == before
            before = found


def test_noise_of_the_size_of_a_sample_never_counts() -> None:
    """Accuracies of honest learning, on 200 samples each: no alarm in 300 federations."""
    draw = random.Random(0)
    for _ in range(300):
        top, pace = draw.uniform(0.4, 0.95), draw.uniform(1, 15)
        truth = [0.1 + (top - 0.1) * (1 - math.exp(-t / pace)) for t in range(1, 31)]
        seen = [sum(draw.random() < p for _ in range(200)) / 200 for p in truth]
        assert find_collapses(rounds(*seen), 10) == []


def test_a_model_that_never_learns_is_named_after_five_evaluations() -> None:
    assert not stays_at_chance(rounds(0.1, 0.1, 0.1, 0.1), 10)
    assert stays_at_chance(rounds(0.1, 0.0985, 0.12, 0.1, 0.1), 10)
    assert stays_at_chance(rounds(10.0, 9.85, 12.0, 10.0, 10.0), 10)
    assert not stays_at_chance(rounds(0.1, 0.0985, 0.12, 0.1, 0.2), 10)


def test_accuracies_are_known_by_their_names() -> None:
    names = [
        "accuracy",
        "eval_acc",
        "test-accuracy",
        "Balanced Accuracy",
        "acc",
        "loss",
        "accumulated",
        "auc",
    ]
    assert [name for name in names if is_accuracy(name)] == names[:5]
