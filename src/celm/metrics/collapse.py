"""The test of collapse: did the accuracy of a federation fall back towards chance?

    c = 1 / K       the accuracy of a guess among K classes
    b               the best earlier evaluation, clearly above chance: b - c >= (1 - c) / 5
    halved          v - c < (b - c) / 2
    at chance       v - c < (b - c) / 10
    unusual         b - v > 3 times the largest fall between two successive earlier evaluations

A collapse is one evaluation at chance that is unusual; or three successive evaluations that are halved and unusual; or
three successive evaluations at chance. Two earlier evaluations are needed. `unusual` keeps the noise of a federation
from counting: if clients hold few classes and few of them train, accuracy changes by tens of points from round to
round. A collapse ends when half of the gain over chance is reached again. Its evaluations are not earlier evaluations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

_MIN_EARLIER = 2
_CLEARLY_ABOVE = 0.2
_AT_CHANCE, _HALVED = 0.1, 0.5
_MIN_SUCCESSIVE = 3
_UNUSUAL_FALL = 3.0
_MAX_FRACTION = 1.5
"""An accuracy above this is in percent."""
_MIN_AT_CHANCE = 5
"""Evaluations from which on it counts that none was above chance."""
_NEAR_CHANCE = 0.05


@dataclass(frozen=True)
class Collapse:
    """A fall of an accuracy towards chance."""

    round: int
    """The first evaluation of the collapse."""
    value: float
    best_round: int
    best: float
    recovered: int | None = None
    """The first later round with half of the lost gain; None if there is none."""


def is_accuracy(name: str) -> bool:
    """Return whether a metric is an accuracy, by the words in its name.

    >>> [is_accuracy(name) for name in ("accuracy", "eval_acc", "balanced-accuracy", "loss", "account")]
    [True, True, True, False, False]
    """
    return bool({"accuracy", "acc"} & set(re.split(r"[^a-z0-9]+", name.lower())))


def find_collapses(accuracy: Mapping[int, float], classes: int) -> list[Collapse]:
    """Return the collapses of an accuracy, round to value in the order of rounds, as fractions or percent.

    >>> find_collapses({1: 0.61, 2: 0.74, 3: 0.79, 4: 0.0985, 5: 0.1}, 10)
    [Collapse(round=4, value=0.0985, best_round=3, best=0.79, recovered=None)]
    """
    collapses: list[Collapse] = []
    earlier: dict[int, float] = {}
    low: dict[int, float] = {}
    """Successive halved evaluations, until they are a collapse or one is not halved."""
    is_collapsed = False
    full = full_accuracy(accuracy.values())
    for number, value in accuracy.items():
        if is_collapsed:
            if _gain_left(value, collapses[-1].best, full / classes) < _HALVED:
                continue
            collapses[-1] = replace(collapses[-1], recovered=number)
            is_collapsed = False
        if _is_above_chance(earlier, full, classes) and (
            _gain_left(value, max(earlier.values()), full / classes) < _HALVED
        ):
            low[number] = value
            is_collapsed = _is_collapse(list(low.values()), list(earlier.values()), full / classes)
        else:
            earlier |= {**low, number: value}
            low = {}
        if is_collapsed:
            best_round = max(earlier, key=lambda number: earlier[number])
            first = next(iter(low))
            collapses.append(Collapse(first, low[first], best_round, earlier[best_round]))
            low = {}
    return collapses


def _is_above_chance(earlier: Mapping[int, float], full: float, classes: int) -> bool:
    if len(earlier) < _MIN_EARLIER or classes < 2:
        return False
    chance = full / classes
    return max(earlier.values()) - chance >= _CLEARLY_ABOVE * (full - chance)


def _gain_left(value: float, best: float, chance: float) -> float:
    return (value - chance) / (best - chance)


def _is_collapse(low: Sequence[float], earlier: Sequence[float], chance: float) -> bool:
    """Test successive halved evaluations against the earlier ones."""
    best = max(earlier)
    unusual_fall = _UNUSUAL_FALL * max(0.0, *(first - second for first, second in pairwise(earlier)))
    unusual = [best - value > unusual_fall for value in low]
    at_chance = [_gain_left(value, best, chance) < _AT_CHANCE for value in low]
    last = slice(-_MIN_SUCCESSIVE, None)
    return (at_chance[-1] and unusual[-1]) or (
        len(low) >= _MIN_SUCCESSIVE and (all(unusual[last]) or all(at_chance[last]))
    )


def stays_at_chance(accuracy: Mapping[int, float], classes: int) -> bool:
    """Return whether there are five evaluations or more, and none was above chance by a twentieth of what is possible.

    >>> stays_at_chance({number: 0.0985 for number in range(1, 9)}, 10)
    True
    """
    full = full_accuracy(accuracy.values())
    chance = full / classes
    above = max(accuracy.values(), default=full) - chance
    return len(accuracy) >= _MIN_AT_CHANCE and above < _NEAR_CHANCE * (full - chance)


def full_accuracy(values: Iterable[float]) -> float:
    """Return the largest possible accuracy: 1 if the values are fractions, 100 if they are percent."""
    return 100.0 if max(values, default=0.0) > _MAX_FRACTION else 1.0
