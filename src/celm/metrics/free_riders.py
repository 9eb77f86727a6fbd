"""How well contributions tell free-riders from honest clients, as in the paper's free-rider table.

    c_i             weight of client i in one round, N clients in that round
    z_i             = (c_i - mean c) / std c        population standard deviation; 0 for all where all c are equal
    flagged at θ    if z_i < θ                      θ: a threshold
    AUROC           = P(c_free-rider < c_honest) + P(c_free-rider = c_honest) / 2     over all such pairs (Mann-Whitney)
    FPR(θ), TPR(θ)  = flagged part of the honest clients, of the free-riders

Each is computed round by round and averaged over the rounds in which it is defined: AUROC needs a free-rider and
an honest client, FPR an honest client, TPR a free-rider. What no round defines is None. The single numbers `fpr`
and `tpr` are means over a grid of thresholds. The paper does not give its grid; ours is 21 values from -2 to 0, so
a mean FPR compares methods with each other, less so with the paper's digits.

No z-score is below -sqrt(N - 1), reached by one client below N - 1 equal ones (Samuelson's inequality): with five
clients no threshold of -2 or less flags anybody, with two none of -1. A low FPR alone is therefore no merit; read
it beside the TPR. With one free-rider among N clients AUROC is a multiple of 1 / (2 (N - 1)).

Values equal up to rounding (one part in 10^9) are equal: a round of weights that differ by less is a round without
information, with z = 0 and AUROC = 1/2; a z-score that close to a threshold is not below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from celm.base.names import in_order

Array = NDArray[np.float64]

THRESHOLDS: tuple[float, ...] = tuple(np.linspace(-2, 0, 21).tolist())
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Detection:
    """Fractions from 0 to 1; None where there was no free-rider or no honest client to judge by."""

    auroc: float | None
    """Mean over rounds."""
    fpr: float | None
    """Mean over rounds and thresholds."""
    tpr: float | None
    thresholds: tuple[float, ...]
    fpr_curve: tuple[float, ...] | None
    """At each threshold, the mean over rounds."""
    tpr_curve: tuple[float, ...] | None
    auroc_by_round: tuple[float | None, ...]
    """Of every round, also where the means are over some rounds only."""


def z_scores(contributions: Mapping[str, float]) -> dict[str, float]:
    """Client to z-score, in client order.

    >>> z_scores({"client-0": 0.25, "client-1": 0.75})
    {'client-0': -1.0, 'client-1': 1.0}
    """
    names = in_order(contributions)
    return dict(zip(names, standardised(values_of(contributions, names)).tolist(), strict=True))


def flagged(contributions: Mapping[str, float], threshold: float) -> list[str]:
    """The clients whose z-score is below the threshold, in client order.

    >>> flagged({"client-0": 0.0, "client-1": 0.3, "client-2": 0.35, "client-3": 0.35}, threshold=-1.5)
    ['client-0']
    """
    return [name for name, z in z_scores(contributions).items() if below(z, threshold)]


def auroc(contributions: Mapping[str, float], free_riders: Collection[str]) -> float | None:
    """AUROC of one round; a tie of a free-rider with an honest client counts one half.

    >>> auroc({"client-0": 0.1, "client-1": 0.1, "client-2": 0.8}, free_riders=["client-0"])
    0.75
    """
    names = in_order(contributions)
    values, rides = values_of(contributions, names), riding(names, free_riders)
    riders, honest = int(rides.sum()), int((~rides).sum())
    if not riders or not honest:
        return None
    pairs_won = ranks(-values)[rides].sum() - riders * (riders + 1) / 2
    return float(pairs_won / (riders * honest))


def false_positive_rate(
    contributions: Mapping[str, float], free_riders: Collection[str], threshold: float
) -> float | None:
    """The part of a round's honest clients that is flagged; None without honest clients."""
    rate = rates(contributions, free_riders, [threshold])[0]
    return None if rate is None else float(rate[0])


def true_positive_rate(
    contributions: Mapping[str, float], free_riders: Collection[str], threshold: float
) -> float | None:
    """The part of a round's free-riders that is flagged; None without free-riders."""
    rate = rates(contributions, free_riders, [threshold])[1]
    return None if rate is None else float(rate[0])


def threshold_curves(
    rounds: Sequence[Mapping[str, float]],
    free_riders: Collection[str],
    thresholds: Sequence[float] = THRESHOLDS,
) -> tuple[Array | None, Array | None]:
    """FPR and TPR at each threshold `[thresholds]`, each the mean over the rounds that define it."""
    found = [rates(contributions, free_riders, thresholds) for contributions in rounds]
    return mean_curve([fpr for fpr, _ in found]), mean_curve([tpr for _, tpr in found])


def detect(
    rounds: Sequence[Mapping[str, float]],
    free_riders: Collection[str],
    thresholds: Sequence[float] = THRESHOLDS,
    over: Iterable[int] | None = None,
) -> Detection:
    """What the weights of a run's rounds say about its free-riders.

    `over` are the positions, from 0, of the rounds to average over: `range(20)` for the warm-up of 20 rounds, after
    which frozen weights repeat one round's answer and outvote the others. By default all.

    >>> found = detect([{"client-0": 0.1, "client-1": 0.9}, {"client-0": 0.5, "client-1": 0.5}], ["client-0"], [-0.5])
    >>> found.auroc, found.fpr, found.tpr, found.auroc_by_round
    (0.75, 0.0, 0.5, (1.0, 0.5))
    """
    if not len(thresholds) or not np.isfinite(thresholds).all():
        raise ValueError("thresholds must be one or more finite numbers")
    by_round = tuple(auroc(contributions, free_riders) for contributions in rounds)
    chosen = range(len(rounds)) if over is None else list(over)
    fpr, tpr = threshold_curves([rounds[t] for t in positions(chosen, rounds)], free_riders, thresholds)
    return Detection(
        auroc=mean_auroc(by_round, chosen),
        fpr=None if fpr is None else float(fpr.mean()),
        tpr=None if tpr is None else float(tpr.mean()),
        thresholds=tuple(float(threshold) for threshold in thresholds),
        fpr_curve=None if fpr is None else tuple(fpr.tolist()),
        tpr_curve=None if tpr is None else tuple(tpr.tolist()),
        auroc_by_round=by_round,
    )


def mean_auroc(auroc_by_round: Sequence[float | None], over: Iterable[int] | None = None) -> float | None:
    """The mean over rounds, or over those at the positions `over`; None where none of them has an AUROC.

    >>> mean_auroc([1.0, None, 0.5, 0.0], over=range(3))
    0.75
    """
    chosen = range(len(auroc_by_round)) if over is None else over
    values = [auroc_by_round[t] for t in positions(chosen, auroc_by_round)]
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def alike(values: Array) -> bool:
    """Whether all values are one, up to rounding: weights such as 1/3 seldom come out equal to the last bit."""
    if not len(values):
        return True
    largest = float(np.abs(values).max())
    return not largest or float(np.ptp(values / largest)) <= TOLERANCE


def ranks(values: Array) -> Array:
    """From 1 for the least; those that are equal up to rounding share the mean of theirs."""
    if alike(values):
        return np.full(len(values), (len(values) + 1) / 2)
    order = np.argsort(values)
    rises = np.diff(values[order] / np.abs(values).max()) > TOLERANCE
    group = np.empty(len(values), dtype=np.intp)
    group[order] = np.concatenate([[0], np.cumsum(rises)])
    return np.asarray(rankdata(group), dtype=np.float64)


def rates(
    contributions: Mapping[str, float], free_riders: Collection[str], thresholds: Sequence[float]
) -> tuple[Array | None, Array | None]:
    """FPR and TPR `[thresholds]` of one round."""
    names = in_order(contributions)
    rides = riding(names, free_riders)
    z = standardised(values_of(contributions, names))
    flags = below(z[:, None], np.asarray(thresholds, dtype=np.float64))
    fpr = flags[~rides].mean(axis=0) if (~rides).any() else None
    tpr = flags[rides].mean(axis=0) if rides.any() else None
    return fpr, tpr


def mean_curve(curves: Sequence[Array | None]) -> Array | None:
    present = [curve for curve in curves if curve is not None]
    return np.asarray(np.mean(present, axis=0), dtype=np.float64) if present else None


def standardised(values: Array) -> Array:
    if alike(values):
        return np.zeros_like(values)
    scaled = values / np.abs(values).max()  # squares can neither overflow nor vanish
    centred = scaled - scaled.mean()
    centred -= centred.mean()  # what rounding left of the mean, which matters where all are close together
    return np.asarray(centred / np.sqrt(np.square(centred).mean()), dtype=np.float64)


def below(z: float | Array, threshold: float | Array) -> NDArray[np.bool_]:
    return np.asarray(z < np.asarray(threshold) - TOLERANCE)


def values_of(contributions: Mapping[str, float], names: Sequence[str]) -> Array:
    values = np.array([contributions[name] for name in names], dtype=np.float64)
    if not np.isfinite(values).all():
        name = names[int(np.flatnonzero(~np.isfinite(values))[0])]
        raise ValueError(f"the contribution of {name!r} is {contributions[name]}")
    return values


def riding(names: Sequence[str], free_riders: Collection[str]) -> NDArray[np.bool_]:
    return np.array([name in free_riders for name in names], dtype=np.bool_)


def positions(chosen: Iterable[int], rounds: Sequence[object]) -> list[int]:
    chosen = sorted(set(chosen))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < len(rounds):
        raise ValueError(f"rounds {chosen[0]} to {chosen[-1]} chosen of {len(rounds)}, which count from 0")
    return chosen
