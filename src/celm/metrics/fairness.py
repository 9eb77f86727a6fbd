"""Whether clients are weighed, and served, as they deserve.

    c_i, r_i           contribution of client i, and a reference for it (standalone accuracy, exact Shapley value, ...)
    Pearson            = correlation of c and r; "collaborative fairness" in CFFL (Lyu et al. 2020) and those after it
    Spearman           = Pearson of their ranks, ties sharing the mean rank
    Gini               = Σ_ij |c_i - c_j| / (2 N Σ_i c_i)     0 where all weigh the same, (N - 1) / N where one has all
    g_i                = a_i - s_i                             accuracy in the federation minus standalone accuracy
    mean gain, spread  = mean_i g_i, population std of g       MCG and CGS in CYCle (Tastan et al., TMLR 2025)
    top hit            = whether the client that c puts first is the one that r puts first; bottom hit likewise last

Two mappings are compared over the clients that both name. None where nothing can be said: a correlation with fewer
than two clients or a constant side, a Gini of nothing or with a weight below 0, a hit where the reference is constant.
Constant, and tied, mean up to rounding, as in `celm.metrics.free_riders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr

from celm.base.names import in_order
from celm.metrics.free_riders import TOLERANCE, alike, ranks, values_of

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """What clients get out of the federation, in accuracy; below 0 they had better stayed alone."""

    mean: float
    spread: float
    by_client: Mapping[str, float]


def pearson(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Correlation over the clients that both name, -1 to 1.

    >>> pearson({"client-0": 0.2, "client-1": 0.8}, {"client-0": 0.5, "client-1": 0.6})
    1.0
    """
    return correlation(*paired(contribution, reference))


def spearman(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Rank correlation over the clients that both name, -1 to 1.

    >>> spearman({"a": 0.1, "b": 0.2, "c": 0.7}, {"a": 1.0, "b": 9.0, "c": 9.1})
    1.0
    """
    c, r = paired(contribution, reference)
    return correlation(ranks(c), ranks(r))


def gini(weights: Mapping[str, float]) -> float | None:
    """Inequality of weights.

    >>> gini({"client-0": 0.0, "client-1": 0.0, "client-2": 0.5, "client-3": 0.5})
    0.5
    """
    values = np.sort(values_of(weights, in_order(weights)))
    if not values.any() or values[0] < 0:
        return None
    scaled, number = values / values[-1], len(values)
    # Over sorted values, the sum over pairs is a sum over ranks.
    weighted = (2 * np.arange(1, number + 1) - number - 1) @ scaled
    return max(0.0, float(weighted / (number * scaled.sum())))


def collaboration_gain(together: Mapping[str, float] | float, alone: Mapping[str, float]) -> Gain | None:
    """Gains from accuracies in the federation, client by client or of one model for all, and standalone ones.

    >>> collaboration_gain(0.75, alone={"client-0": 0.5, "client-1": 0.25})
    Gain(mean=0.375, spread=0.125, by_client={'client-0': 0.25, 'client-1': 0.5})
    """
    if not isinstance(together, Mapping):
        together = dict.fromkeys(alone, together)
    names = common(together, alone)
    if not names:
        return None
    gains = values_of(together, names) - values_of(alone, names)
    return Gain(float(gains.mean()), float(gains.std()), dict(zip(names, gains.tolist(), strict=True)))


def top_hit(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """1 where the client with the largest contribution has the largest reference, else 0.

    Among several that the contribution puts first, the part that the reference puts first too: the chance of a hit
    by lot. So equal weights score what guessing does.

    >>> top_hit({"a": 0.4, "b": 0.4, "c": 0.2}, {"a": 3.0, "b": 1.0, "c": 2.0})
    0.5
    """
    c, r = paired(contribution, reference)
    return hit(c, r)


def bottom_hit(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Likewise for the smallest contribution: whether the client that brings least is named.

    >>> bottom_hit({"a": 0.4, "b": 0.4, "c": 0.2}, {"a": 3.0, "b": 1.0, "c": 2.0})
    0.0
    """
    c, r = paired(contribution, reference)
    return hit(-c, -r)


def correlation(left: Array, right: Array) -> float | None:
    if alike(left) or alike(right):
        return None
    # Scaled, so that squares can neither overflow nor vanish.
    found = pearsonr(left / np.abs(left).max(), right / np.abs(right).max())
    return float(np.clip(found.statistic, -1, 1))


def hit(left: Array, right: Array) -> float | None:
    if alike(right):
        return None
    first = leading(left)
    return float((first & leading(right)).sum() / first.sum())


def leading(values: Array) -> NDArray[np.bool_]:
    """Which values are the largest, up to rounding."""
    return np.asarray(values >= values.max() - TOLERANCE * np.abs(values).max())


def paired(left: Mapping[str, float], right: Mapping[str, float]) -> tuple[Array, Array]:
    names = common(left, right)
    return values_of(left, names), values_of(right, names)


def common(left: Mapping[str, float], right: Mapping[str, float]) -> list[str]:
    return in_order(name for name in left if name in right)
