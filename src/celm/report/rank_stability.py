"""How stable scores and ranks are over the rounds that have scores.

    rank                1 for the highest score of a round; equal scores share the best of their ranks
    Spearman's rho      correlation of the ranks (mean rank for ties) of the clients that two rounds share

Rounds are not independent, and the first one begins at a model that has learnt nothing. So these numbers describe what
was observed; they are not a confidence interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import rankdata

from celm.report.formatting import format_percent, pluralise

_MIN_SHARED_CLIENTS = 3
"""A correlation of fewer ranks says nothing."""

_Scores = Mapping[str, float]


@dataclass(frozen=True)
class ScoreHistory:
    """The scores and ranks of one client over the rounds in which it has a score."""

    num_rounds: int
    scores: tuple[float, float]
    """Lowest and highest."""
    ranks: tuple[int, int]
    """Best and worst."""

    @property
    def rank_range(self) -> str:
        """The ranks as text, such as `2–4`."""
        best, worst = self.ranks
        return str(best) if best == worst else f"{best}–{worst}"

    def describe(self, decimals: int = 1) -> str:
        """Return the ranges as part of a sentence.

        >>> ScoreHistory(4, (0.1, 0.25), (2, 3)).describe()
        'score 10.0 % to 25.0 % and rank 2 to 3 over 4 rounds'
        >>> ScoreHistory(1, (0.1, 0.1), (2, 2)).describe()
        'score 10.0 % and rank 2 in the one round with its score'
        """
        low, high = (format_percent(score, decimals) for score in self.scores)
        score = low if low == high else f"{low} to {high}"
        rank = self.rank_range.replace("–", " to ")
        if self.num_rounds == 1:
            return f"score {score} and rank {rank} in the one round with its score"
        return f"score {score} and rank {rank} over {pluralise(self.num_rounds, 'round')}"


@dataclass(frozen=True)
class RankStability:
    """Ranks over the rounds of a run or a federation."""

    num_rounds: int
    """Rounds with scores."""
    histories: Mapping[str, ScoreHistory]
    correlations: Mapping[tuple[int, int], float | None]
    """Successive rounds with scores to Spearman's rho; None if it is not defined."""

    def describe(self) -> str:
        """Say how far the order of clients agrees between successive rounds."""
        if self.num_rounds < 2:
            return "Fewer than two rounds have scores, so it is not known how stable the ranks are."
        defined = {pair: rho for pair, rho in self.correlations.items() if rho is not None}
        if not defined:
            return (
                "Successive rounds share too few clients, or their scores are equal: "
                "it is not known how stable the ranks are."
            )
        (first, second), lowest = min(defined.items(), key=lambda item: item[1])
        median = float(np.median(list(defined.values())))
        text = (
            f"Ranks of successive rounds with scores have a Spearman correlation of {median:.2f} in the median "
            f"of {pluralise(len(defined), 'pair')} of rounds"
        )
        if len(defined) > 1:
            text += f"; the lowest is {lowest:.2f}, from round {first} to round {second}"
        undefined = len(self.correlations) - len(defined)
        if undefined:
            text += f"; {pluralise(undefined, 'further pair')} cannot be compared"
        return (
            f"{text}. 1 means the same order, 0 no relation. "
            "Rounds are not independent: this describes what was observed, and is not a confidence interval."
        )


def rank_stability(records: Sequence[Mapping[str, Any]]) -> RankStability:
    """Compute ranks and their stability from records with `round` and `scores`; rounds without scores are skipped."""
    rounds = [(record["round"], record["scores"]) for record in records if record["scores"]]
    seen: dict[str, list[tuple[float, int]]] = {}
    for _, scores in rounds:
        for client, rank in _ranks(scores).items():
            seen.setdefault(client, []).append((scores[client], rank))
    histories = {
        client: ScoreHistory(
            len(pairs),
            (min(score for score, _ in pairs), max(score for score, _ in pairs)),
            (min(rank for _, rank in pairs), max(rank for _, rank in pairs)),
        )
        for client, pairs in seen.items()
    }
    correlations = {
        (first, second): _spearman(before, after) for (first, before), (second, after) in pairwise(rounds)
    }
    return RankStability(len(rounds), histories, correlations)


def _ranks(scores: _Scores) -> dict[str, int]:
    """Return the rank of each client in one round.

    >>> _ranks({"a": 0.2, "b": 0.5, "c": 0.2})
    {'a': 2, 'b': 1, 'c': 2}
    """
    ranks = rankdata([-score for score in scores.values()], method="min")
    return dict(zip(scores, (int(rank) for rank in ranks), strict=True))


def _spearman(before: _Scores, after: _Scores) -> float | None:
    """Return the rank correlation over the shared clients; None if they are too few or a side is constant.

    >>> _spearman({"a": 3, "b": 2, "c": 1}, {"a": 1, "b": 2, "c": 3, "d": 9})
    -1.0
    """
    clients = [client for client in before if client in after]
    if len(clients) < _MIN_SHARED_CLIENTS:
        return None
    ranks = [rankdata([scores[client] for client in clients]) for scores in (before, after)]
    if any(np.ptp(row) == 0 for row in ranks):
        return None
    return round(float(np.corrcoef(*ranks)[0, 1]), 12)
