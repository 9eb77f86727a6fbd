"""Separation of free-riders from honest clients by their contributions, as in the paper's free-rider table.

    c_i             weight of client i in one round, N clients in that round
    z_i             = (c_i - mean c) / std c        population standard deviation; all 0 if all c are equal
    flagged at θ    if z_i < θ                      θ: a threshold
    AUROC           = P(c_free-rider < c_honest) + P(c_free-rider = c_honest) / 2     over all such pairs (Mann-Whitney)
    FPR(θ), TPR(θ)  = flagged fraction of the honest clients, and of the free-riders

Each is computed per round and averaged over the rounds in which it is defined: AUROC needs a free-rider and
an honest client, FPR an honest client, TPR a free-rider. A measure that no round defines is None. The numbers `fpr`
and `tpr` are means over a grid of thresholds. The paper does not give its grid. Ours is 21 values from -2 to 0, so
compare mean FPRs between methods rather than with the paper's digits.

No z-score is below -sqrt(N - 1), reached by one client below N - 1 equal ones (Samuelson's inequality). With five
clients no threshold of -2 or less flags a client; with two clients, none of -1 or less. So a low FPR alone does not
show merit: read it beside the TPR. With one free-rider among N clients AUROC is a multiple of 1 / (2 (N - 1)).

Values that are equal up to rounding (one part in 10^9) count as equal. Weights that differ by less carry no
information: z = 0 and AUROC = 1/2. A z-score that close to a threshold is not below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from celm.base.client_order import natural_sorted

FloatArray = NDArray[np.float64]

THRESHOLDS: tuple[float, ...] = tuple(np.linspace(-2, 0, 21).tolist())
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Detection:
    """Detection rates as fractions from 0 to 1; None without free-riders or without honest clients."""

    auroc: float | None
    """Mean over rounds."""
    fpr: float | None
    """Mean over rounds and thresholds."""
    tpr: float | None
    """Mean over rounds and thresholds."""
    thresholds: tuple[float, ...]
    fpr_curve: tuple[float, ...] | None
    """Mean over rounds at each threshold."""
    tpr_curve: tuple[float, ...] | None
    auroc_by_round: tuple[float | None, ...]
    """AUROC of every round, even if the means cover only some rounds."""


def z_scores(contributions: Mapping[str, float]) -> dict[str, float]:
    """Return the z-score of each client, in client order.

    >>> z_scores({"client-0": 0.25, "client-1": 0.75})
    {'client-0': -1.0, 'client-1': 1.0}
    """
    names = natural_sorted(contributions)
    return dict(zip(names, _standardise_values(client_values(contributions, names)).tolist(), strict=True))


def flag_clients(contributions: Mapping[str, float], threshold: float) -> list[str]:
    """Return the clients whose z-score is below the threshold, in client order.

    >>> flag_clients({"client-0": 0.0, "client-1": 0.3, "client-2": 0.35, "client-3": 0.35}, threshold=-1.5)
    ['client-0']
    """
    return [name for name, z in z_scores(contributions).items() if _is_below(z, threshold)]


def auroc(contributions: Mapping[str, float], free_riders: Collection[str]) -> float | None:
    """Return the AUROC of one round; a tie of a free-rider with an honest client counts one half.

    >>> auroc({"client-0": 0.1, "client-1": 0.1, "client-2": 0.8}, free_riders=["client-0"])
    0.75
    """
    names = natural_sorted(contributions)
    values, is_rider = client_values(contributions, names), _free_rider_mask(names, free_riders)
    num_riders, num_honest = int(is_rider.sum()), int((~is_rider).sum())
    if not num_riders or not num_honest:
        return None
    pairs_won = tie_tolerant_ranks(-values)[is_rider].sum() - num_riders * (num_riders + 1) / 2
    return float(pairs_won / (num_riders * num_honest))


def threshold_curves(
    rounds: Sequence[Mapping[str, float]],
    free_riders: Collection[str],
    thresholds: Sequence[float] = THRESHOLDS,
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return FPR and TPR `[thresholds]`, each the mean over the rounds that define it."""
    curves = [_flag_rates(contributions, free_riders, thresholds) for contributions in rounds]
    return _mean_curve([fpr for fpr, _ in curves]), _mean_curve([tpr for _, tpr in curves])


def detect_free_riders(
    rounds: Sequence[Mapping[str, float]],
    free_riders: Collection[str],
    thresholds: Sequence[float] = THRESHOLDS,
    round_indices: Iterable[int] | None = None,
) -> Detection:
    """Measure how well the weights of a run's rounds detect its free-riders.

    `round_indices` are the positions, from 0, of the rounds that count; by default all. `range(20)` is a warm-up of
    20 rounds, after which frozen weights repeat the answer of one round and outvote the others.

    >>> result = detect_free_riders([{"a": 0.1, "b": 0.9}, {"a": 0.5, "b": 0.5}], ["a"], [-0.5])
    >>> result.auroc, result.fpr, result.tpr, result.auroc_by_round
    (0.75, 0.0, 0.5, (1.0, 0.5))
    """
    if not len(thresholds) or not np.isfinite(thresholds).all():
        raise ValueError("thresholds must be one or more finite numbers")
    by_round = tuple(auroc(contributions, free_riders) for contributions in rounds)
    indices = range(len(rounds)) if round_indices is None else list(round_indices)
    fpr, tpr = threshold_curves(
        [rounds[t] for t in _check_round_indices(indices, rounds)], free_riders, thresholds
    )
    return Detection(
        auroc=mean_auroc(by_round, indices),
        fpr=None if fpr is None else float(fpr.mean()),
        tpr=None if tpr is None else float(tpr.mean()),
        thresholds=tuple(float(threshold) for threshold in thresholds),
        fpr_curve=None if fpr is None else tuple(fpr.tolist()),
        tpr_curve=None if tpr is None else tuple(tpr.tolist()),
        auroc_by_round=by_round,
    )


def mean_auroc(
    auroc_by_round: Sequence[float | None], round_indices: Iterable[int] | None = None
) -> float | None:
    """Return the mean over the rounds at the positions `round_indices` (default: all); None if no AUROC is defined.

    >>> mean_auroc([1.0, None, 0.5, 0.0], round_indices=range(3))
    0.75
    """
    indices = range(len(auroc_by_round)) if round_indices is None else round_indices
    values = [auroc_by_round[t] for t in _check_round_indices(indices, auroc_by_round)]
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def all_equal(values: FloatArray) -> bool:
    """Return whether all values are equal up to rounding: weights such as 1/3 seldom agree to the last bit."""
    if not len(values):
        return True
    largest = float(np.abs(values).max())
    return not largest or float(np.ptp(values / largest)) <= TOLERANCE


def tie_tolerant_ranks(values: FloatArray) -> FloatArray:
    """Return ranks from 1 for the least; values that are equal up to rounding share the mean of their ranks."""
    if all_equal(values):
        return np.full(len(values), (len(values) + 1) / 2)
    order = np.argsort(values)
    rises = np.diff(values[order] / np.abs(values).max()) > TOLERANCE
    group = np.empty(len(values), dtype=np.intp)
    group[order] = np.concatenate([[0], np.cumsum(rises)])
    return np.asarray(rankdata(group), dtype=np.float64)


def _flag_rates(
    contributions: Mapping[str, float], free_riders: Collection[str], thresholds: Sequence[float]
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return FPR and TPR `[thresholds]` of one round."""
    names = natural_sorted(contributions)
    is_rider = _free_rider_mask(names, free_riders)
    z = _standardise_values(client_values(contributions, names))
    flags = _is_below(z[:, None], np.asarray(thresholds, dtype=np.float64))
    fpr = flags[~is_rider].mean(axis=0) if (~is_rider).any() else None
    tpr = flags[is_rider].mean(axis=0) if is_rider.any() else None
    return fpr, tpr


def _mean_curve(curves: Sequence[FloatArray | None]) -> FloatArray | None:
    present = [curve for curve in curves if curve is not None]
    return np.asarray(np.mean(present, axis=0), dtype=np.float64) if present else None


def _standardise_values(values: FloatArray) -> FloatArray:
    if all_equal(values):
        return np.zeros_like(values)
    scaled = values / np.abs(values).max()  # so that squares neither overflow nor vanish
    centred = scaled - scaled.mean()
    centred -= centred.mean()  # remove what rounding left of the mean, which matters if all values are close
    return np.asarray(centred / np.sqrt(np.square(centred).mean()), dtype=np.float64)


def _is_below(z: float | FloatArray, threshold: float | FloatArray) -> NDArray[np.bool_]:
    return np.asarray(z < np.asarray(threshold) - TOLERANCE)


def client_values(contributions: Mapping[str, float], names: Sequence[str]) -> FloatArray:
    """Return the contributions of the named clients `[N]`; raise if one is not finite."""
    values = np.array([contributions[name] for name in names], dtype=np.float64)
    if not np.isfinite(values).all():
        name = names[int(np.flatnonzero(~np.isfinite(values))[0])]
        raise ValueError(f"contribution of {name!r} is not finite: {contributions[name]}")
    return values


def _free_rider_mask(names: Sequence[str], free_riders: Collection[str]) -> NDArray[np.bool_]:
    return np.array([name in free_riders for name in names], dtype=np.bool_)


def _check_round_indices(indices: Iterable[int], rounds: Sequence[object]) -> list[int]:
    indices = sorted(set(indices))
    if indices and not 0 <= indices[0] <= indices[-1] < len(rounds):
        raise ValueError(
            f"round_indices must be from 0 to {len(rounds) - 1}: they go from {indices[0]} to {indices[-1]}"
        )
    return indices
