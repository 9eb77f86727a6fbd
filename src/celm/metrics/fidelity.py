"""Distance of the estimated client x class distribution from the true one, as in the paper's fidelity table.

    p_ik, q_ik         joint client x class distributions: the N x K matrix divided by the sum of all its cells.
                       True: sample counts. Estimated: evidence Q. Uniform: 1 / (N K) everywhere
    m                  = (p + q) / 2
    divergence         = (KL(p || m) + KL(q || m)) / 2         Jensen-Shannon, natural logarithm; 0 to ln 2
    Jensen-Shannon     = sqrt(divergence)                      the distance, the paper's "JSD"; 0 to sqrt(ln 2) = .833
    Hellinger          = sqrt(1 - Σ sqrt(p q)) = sqrt(Σ (sqrt p - sqrt q)² / 2)
    total variation    = Σ |p - q| / 2
    EMD                = mean over clients i of W1(p_i·, q_i·) / (K - 1)

All except the divergence are metrics, from 0 (equal) to at most 1. The uniform columns of the paper's
Jensen-Shannon and Hellinger agree to all three digits. **Its EMD column could not be recovered; the EMD here is
ours.** Do not compare its digits with the paper's. W1 is the 1-D Wasserstein distance over the class
index between a client's two class distributions (its rows divided by their sums). So our EMD does not depend on how
much each client holds, but it does depend on the order of the classes. A client with mass on one side only counts 1,
the largest distance; a client with mass on neither side counts 0. A row without mass is then one more point, at
distance 1 from every distribution, so EMD remains a metric.

A matrix without mass is not a distribution, and its distance is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr
from scipy.stats import wasserstein_distance

from celm.base.client_order import natural_sorted

FloatArray = NDArray[np.float64]
ClassTable = Mapping[str, Sequence[float]]
"""Client to one number per class: counts or evidence."""


@dataclass(frozen=True)
class Fidelity:
    """Distances between two joint client x class distributions; 0 means the same."""

    jensen_shannon: float
    divergence: float
    hellinger: float
    total_variation: float
    emd: float
    """Ours, not the paper's."""
    clients: float
    """Jensen-Shannon distance of the marginals over clients."""
    classes: float
    """Jensen-Shannon distance of the marginals over classes."""


def fidelity(true: ClassTable, estimated: ClassTable) -> Fidelity | None:
    """Return the distances between true sample counts and estimated evidence.

    A client without an estimate (it never took part) has no estimated mass. A client that is only in the estimate
    is an error, as is a different number of classes.

    >>> result = fidelity({"client-0": [3, 1], "client-1": [0, 4]}, {"client-0": [2, 2], "client-1": [0, 4]})
    >>> round(result.jensen_shannon, 4), result.total_variation, result.emd, result.clients
    (0.13, 0.125, 0.125, 0.0)
    """
    names = natural_sorted(true)
    unknown = natural_sorted(set(estimated) - set(names))
    if unknown:
        raise ValueError(f"client {unknown[0]!r} is in the estimate but not in the truth")
    if not estimated:
        return None
    true_matrix, estimated_matrix = _to_matrix(true, names), _to_matrix(estimated, names)
    if true_matrix.shape != estimated_matrix.shape:
        raise ValueError(
            f"the truth has {true_matrix.shape[1]} classes and the estimate {estimated_matrix.shape[1]}"
        )
    return _matrix_fidelity(true_matrix, estimated_matrix)


def fidelity_to_uniform(true: ClassTable) -> Fidelity | None:
    """Return the distances to the uniform estimate: every client holds the same amount of every class.

    >>> round(fidelity_to_uniform({"client-0": [1, 0], "client-1": [0, 1]}).hellinger, 4)
    0.5412
    """
    counts = _to_matrix(true, natural_sorted(true))
    return _matrix_fidelity(counts, np.ones_like(counts))


def jensen_shannon(p: FloatArray, q: FloatArray) -> float:
    """Return the Jensen-Shannon distance of two distributions of one shape; natural logarithm."""
    return float(np.sqrt(_jensen_shannon_divergence(p, q)))


def _jensen_shannon_divergence(p: FloatArray, q: FloatArray) -> float:
    """Return the Jensen-Shannon divergence, the square of the distance."""
    # scipy's jensenshannon is NaN for two distributions that differ in the last bit: its sum ends below 0.
    # KL(p || m) is computed from 2p and 2m, because half of the smallest float is 0 and would make it infinite.
    total = p + q
    return max(0.0, float(rel_entr(2 * p, total).sum() + rel_entr(2 * q, total).sum()) / 4)


def hellinger(p: FloatArray, q: FloatArray) -> float:
    """Return the Hellinger distance of two distributions."""
    return float(np.sqrt(np.square(np.sqrt(p) - np.sqrt(q)).sum() / 2))


def total_variation(p: FloatArray, q: FloatArray) -> float:
    """Return the total variation distance of two distributions."""
    return float(np.abs(p - q).sum() / 2)


def emd(p: FloatArray, q: FloatArray) -> float:
    """Return the mean over clients of the distance between class distributions; rows `[N, K]` may have any sum."""
    return float(np.mean([_class_distance(row_p, row_q) for row_p, row_q in zip(p, q, strict=True)]))


def _class_distance(true: FloatArray, estimated: FloatArray) -> float:
    """Return the 1-D Wasserstein distance over the class index of two rows `[K]`, divided by K - 1."""
    p, q = _to_distribution(true), _to_distribution(estimated)
    if p is None or q is None:
        return 0.0 if p is q else 1.0
    index = np.arange(len(p))
    # With one class the distance is 0, which is divided by 1.
    return float(wasserstein_distance(index, index, p, q)) / max(1, len(p) - 1)


def _matrix_fidelity(true: FloatArray, estimated: FloatArray) -> Fidelity | None:
    p, q = _to_distribution(true), _to_distribution(estimated)
    if p is None or q is None:
        return None
    return Fidelity(
        jensen_shannon=jensen_shannon(p, q),
        divergence=_jensen_shannon_divergence(p, q),
        hellinger=hellinger(p, q),
        total_variation=total_variation(p, q),
        emd=emd(true, estimated),
        clients=jensen_shannon(p.sum(axis=1), q.sum(axis=1)),
        classes=jensen_shannon(p.sum(axis=0), q.sum(axis=0)),
    )


def _to_distribution(values: FloatArray) -> FloatArray | None:
    """Divide the values by their sum; return None if all are 0."""
    if not values.any():
        return None
    scaled = values / values.max()  # so that the sum cannot overflow
    return np.asarray(scaled / scaled.sum(), dtype=np.float64)


def _to_matrix(table: ClassTable, names: Sequence[str]) -> FloatArray:
    """Return the rows `[N, K]` of the named clients; zeros for clients that the table does not contain."""
    classes = {len(row) for row in table.values()}
    if len(classes) > 1:
        raise ValueError(f"clients have different numbers of classes: {sorted(classes)}")
    zero_row = [0.0] * (classes.pop() if classes else 0)
    rows = np.array([table.get(name, zero_row) for name in names], dtype=np.float64)
    invalid = [
        name for name, row in zip(names, rows, strict=True) if not np.all(np.isfinite(row) & (row >= 0))
    ]
    if invalid:
        raise ValueError(f"counts or evidence of client {invalid[0]!r} are negative or not finite")
    return rows.reshape(len(names), len(zero_row))
