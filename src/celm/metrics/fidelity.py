"""How near the estimated distribution of classes over clients is to the true one, as in the paper's fidelity table.

    p_ik, q_ik         joint client x class distributions: the N x K matrix divided by the sum of all its cells.
                       True: sample counts. Estimated: evidence Q. Uniform: 1 / (N K) everywhere
    m                  = (p + q) / 2
    divergence         = (KL(p || m) + KL(q || m)) / 2         Jensen-Shannon, natural logarithm; 0 to ln 2
    Jensen-Shannon     = sqrt(divergence)                      the distance, the paper's "JSD"; 0 to sqrt(ln 2) = .833
    Hellinger          = sqrt(1 - Σ sqrt(p q)) = sqrt(Σ (sqrt p - sqrt q)² / 2)
    total variation    = Σ |p - q| / 2
    EMD                = mean over clients i of W1(p_i·, q_i·) / (K - 1)

All but the divergence are metrics and go from 0, alike, to at most 1. The uniform columns of the paper's
Jensen-Shannon and Hellinger come out to all three digits. **Its EMD column could not be recovered; the EMD here is
ours**, and its digits must not be compared with the paper's. W1 is the 1-D Wasserstein distance over the class
index between a client's own class distributions (its row divided by the row's sum), so ours does not depend on how
much each client holds, and does depend on the order of the classes. A client with mass on one side only counts 1,
the largest distance there is; with none on either side it counts 0. Such a client is one more point at distance 1
from every distribution, so EMD stays a metric.

A matrix without any mass is no distribution, and there is no distance to it: None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr
from scipy.stats import wasserstein_distance

from celm.base.names import in_order

Array = NDArray[np.float64]
Table = Mapping[str, Sequence[float]]
"""Client to one number for each class: counts or evidence."""


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
    """Jensen-Shannon distance of the marginals over clients: how much each holds."""
    classes: float
    """Jensen-Shannon distance of the marginals over classes: how much there is of each."""


@dataclass(frozen=True)
class Marginals:
    """A joint distribution summed over classes and over clients; each sums to 1."""

    clients: Mapping[str, float]
    classes: tuple[float, ...]


def fidelity(true: Table, estimated: Table) -> Fidelity | None:
    """Distances from what the clients hold to what was estimated.

    A client that the estimate does not name (it never took part) has no mass there; one that the truth does not
    name is an error, as is a different number of classes.

    >>> found = fidelity({"client-0": [3, 1], "client-1": [0, 4]}, {"client-0": [2, 2], "client-1": [0, 4]})
    >>> round(found.jensen_shannon, 4), found.total_variation, found.emd, found.clients
    (0.13, 0.125, 0.125, 0.0)
    """
    names = in_order(true)
    unknown = in_order(set(estimated) - set(names))
    if unknown:
        raise ValueError(f"client {unknown[0]!r} is estimated, but not among those of the truth")
    if not estimated:
        return None
    left, right = matrix(true, names), matrix(estimated, names)
    if left.shape != right.shape:
        raise ValueError(f"{left.shape[1]} classes against {right.shape[1]} of the estimate")
    return between(left, right)


def against_uniform(true: Table) -> Fidelity | None:
    """Distances to the estimate of who knows nothing: every client holds equally much of every class.

    >>> round(against_uniform({"client-0": [1, 0], "client-1": [0, 1]}).hellinger, 4)
    0.5412
    """
    counts = matrix(true, in_order(true))
    return between(counts, np.ones_like(counts))


def joint(table: Table) -> Array | None:
    """The joint distribution `[N, K]`, clients in order; None where there is no mass.

    >>> joint({"client-1": [0, 1], "client-0": [1, 2]})
    array([[0.25, 0.5 ],
           [0.  , 0.25]])
    """
    return normalised(matrix(table, in_order(table)))


def marginals(table: Table) -> Marginals | None:
    """What each client holds of everything and what there is of each class; None where there is no mass.

    >>> marginals({"client-0": [1, 2], "client-1": [0, 1]})
    Marginals(clients={'client-0': 0.75, 'client-1': 0.25}, classes=(0.25, 0.75))
    """
    p = joint(table)
    if p is None:
        return None
    clients = dict(zip(in_order(table), p.sum(axis=1).tolist(), strict=True))
    return Marginals(clients, tuple(p.sum(axis=0).tolist()))


def jensen_shannon(p: Array, q: Array) -> float:
    """Distance of two distributions of one shape; natural logarithm."""
    return float(np.sqrt(divergence(p, q)))


def divergence(p: Array, q: Array) -> float:
    """Jensen-Shannon divergence, the square of the distance."""
    # scipy's jensenshannon is NaN for two distributions that differ in the last bit: the sum ends below 0 there.
    # KL(p || m) from 2p and 2m: half of the smallest number there is would be 0, and the divergence from it infinite.
    total = p + q
    return max(0.0, float(rel_entr(2 * p, total).sum() + rel_entr(2 * q, total).sum()) / 4)


def hellinger(p: Array, q: Array) -> float:
    return float(np.sqrt(np.square(np.sqrt(p) - np.sqrt(q)).sum() / 2))


def total_variation(p: Array, q: Array) -> float:
    return float(np.abs(p - q).sum() / 2)


def emd(p: Array, q: Array) -> float:
    """Mean over clients of the distance between their class distributions, from rows `[N, K]` with any sums."""
    return float(np.mean([class_distance(of_p, of_q) for of_p, of_q in zip(p, q, strict=True)]))


def class_distance(held: Array, estimated: Array) -> float:
    """1-D Wasserstein distance over the class index of two rows `[K]`, divided by K - 1."""
    left, right = normalised(held), normalised(estimated)
    if left is None or right is None:
        return 0.0 if left is right else 1.0
    index = np.arange(len(left))
    # One class leaves nothing to move: 0 / 1.
    return float(wasserstein_distance(index, index, left, right)) / max(1, len(left) - 1)


def between(left: Array, right: Array) -> Fidelity | None:
    p, q = normalised(left), normalised(right)
    if p is None or q is None:
        return None
    return Fidelity(
        jensen_shannon=jensen_shannon(p, q),
        divergence=divergence(p, q),
        hellinger=hellinger(p, q),
        total_variation=total_variation(p, q),
        emd=emd(left, right),
        clients=jensen_shannon(p.sum(axis=1), q.sum(axis=1)),
        classes=jensen_shannon(p.sum(axis=0), q.sum(axis=0)),
    )


def normalised(values: Array) -> Array | None:
    """The values divided by their sum; None where all are 0."""
    if not values.any():
        return None
    scaled = values / values.max()  # the sum cannot overflow
    return np.asarray(scaled / scaled.sum(), dtype=np.float64)


def matrix(table: Table, names: Sequence[str]) -> Array:
    """Rows `[N, K]` of the named clients; zeros for those that the table does not have."""
    classes = {len(row) for row in table.values()}
    if len(classes) > 1:
        raise ValueError(f"clients have different numbers of classes: {sorted(classes)}")
    nothing = [0.0] * (classes.pop() if classes else 0)
    rows = np.array([table.get(name, nothing) for name in names], dtype=np.float64)
    wrong = [name for name, row in zip(names, rows, strict=True) if not np.all(np.isfinite(row) & (row >= 0))]
    if wrong:
        raise ValueError(f"client {wrong[0]!r} has counts or evidence that are negative or not finite")
    return rows.reshape(len(names), len(nothing))
