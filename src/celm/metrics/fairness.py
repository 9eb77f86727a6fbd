"""Fairness: contributions compared with a reference, and the accuracy that each client gains.

    c_i, r_i           contribution of client i, and a reference for it (standalone accuracy, exact Shapley value, ...)
    Pearson            = correlation of c and r; "collaborative fairness" in CFFL (Lyu et al. 2020) and those after it
    Spearman           = Pearson of their ranks, ties sharing the mean rank
    Gini               = Σ_ij |c_i - c_j| / (2 N Σ_i c_i)     0 if all are equal, (N - 1) / N if one client has all
    g_i                = a_i - s_i                             accuracy in the federation minus standalone accuracy
    mean gain, spread  = mean_i g_i, population std of g       MCG and CGS in CYCle (Tastan et al., TMLR 2025)
    top hit            = whether the client with the largest c has the largest r; bottom hit: the smallest

Two mappings are compared over the clients that both contain. "Constant" and "tied" mean up to rounding, as in
`celm.metrics.free_riders`. A measure that is not defined is None:

- a correlation with fewer than two clients or a constant side
- a Gini without weights or with a negative weight
- a hit with a constant reference
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr

from celm.base.client_order import natural_sorted
from celm.metrics.free_riders import TOLERANCE, all_equal, client_values, tie_tolerant_ranks

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class CollaborationGain:
    """Accuracy that clients gain by the federation; below 0 they do better alone."""

    mean: float
    spread: float
    by_client: Mapping[str, float]


def pearson(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Return the correlation over the common clients, -1 to 1.

    >>> pearson({"client-0": 0.2, "client-1": 0.8}, {"client-0": 0.5, "client-1": 0.6})
    1.0
    """
    return _correlate(*_paired_values(contribution, reference))


def spearman(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Return the rank correlation over the common clients, -1 to 1.

    >>> spearman({"a": 0.1, "b": 0.2, "c": 0.7}, {"a": 1.0, "b": 9.0, "c": 9.1})
    1.0
    """
    c, r = _paired_values(contribution, reference)
    return _correlate(tie_tolerant_ranks(c), tie_tolerant_ranks(r))


def gini(weights: Mapping[str, float]) -> float | None:
    """Return the inequality of weights.

    >>> gini({"client-0": 0.0, "client-1": 0.0, "client-2": 0.5, "client-3": 0.5})
    0.5
    """
    values = np.sort(client_values(weights, natural_sorted(weights)))
    if not values.any() or values[0] < 0:
        return None
    scaled, count = values / values[-1], len(values)
    # Over sorted values the sum over pairs is a sum over ranks.
    weighted = (2 * np.arange(1, count + 1) - count - 1) @ scaled
    return max(0.0, float(weighted / (count * scaled.sum())))


def collaboration_gain(
    federated: Mapping[str, float] | float, standalone: Mapping[str, float]
) -> CollaborationGain | None:
    """Return the gains over standalone accuracies; `federated` is one accuracy for all clients, or one for each.

    >>> collaboration_gain(0.75, standalone={"client-0": 0.5, "client-1": 0.25})
    CollaborationGain(mean=0.375, spread=0.125, by_client={'client-0': 0.25, 'client-1': 0.5})
    """
    if not isinstance(federated, Mapping):
        federated = dict.fromkeys(standalone, federated)
    names = _common_clients(federated, standalone)
    if not names:
        return None
    gains = client_values(federated, names) - client_values(standalone, names)
    return CollaborationGain(
        float(gains.mean()), float(gains.std()), dict(zip(names, gains.tolist(), strict=True))
    )


def top_hit(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Return 1 if the client with the largest contribution has the largest reference, else 0.

    If several clients have the largest contribution, return the fraction of them with the largest reference: the chance
    of a random pick. So equal weights score as much as a random guess.

    >>> top_hit({"a": 0.4, "b": 0.4, "c": 0.2}, {"a": 3.0, "b": 1.0, "c": 2.0})
    0.5
    """
    c, r = _paired_values(contribution, reference)
    return _hit_rate(c, r)


def bottom_hit(contribution: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Return 1 if the client with the smallest contribution has the smallest reference, else 0; ties as in `top_hit`.

    >>> bottom_hit({"a": 0.4, "b": 0.4, "c": 0.2}, {"a": 3.0, "b": 1.0, "c": 2.0})
    0.0
    """
    c, r = _paired_values(contribution, reference)
    return _hit_rate(-c, -r)


def _correlate(left: FloatArray, right: FloatArray) -> float | None:
    if all_equal(left) or all_equal(right):
        return None
    # Scale, so that squares neither overflow nor vanish.
    result = pearsonr(left / np.abs(left).max(), right / np.abs(right).max())
    return float(np.clip(result.statistic, -1, 1))


def _hit_rate(contribution: FloatArray, reference: FloatArray) -> float | None:
    if all_equal(reference):
        return None
    leaders = _leading_mask(contribution)
    return float((leaders & _leading_mask(reference)).sum() / leaders.sum())


def _leading_mask(values: FloatArray) -> NDArray[np.bool_]:
    """Return a mask of the largest values, up to rounding."""
    return np.asarray(values >= values.max() - TOLERANCE * np.abs(values).max())


def _paired_values(left: Mapping[str, float], right: Mapping[str, float]) -> tuple[FloatArray, FloatArray]:
    names = _common_clients(left, right)
    return client_values(left, names), client_values(right, names)


def _common_clients(left: Mapping[str, float], right: Mapping[str, float]) -> list[str]:
    return natural_sorted(name for name in left if name in right)
