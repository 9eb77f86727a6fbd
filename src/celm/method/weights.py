"""From scores to aggregation weights, Eq. 13-14 of the paper: smooth during warm-up, then freeze.

    c_i(0) = 1/N
    c_i(t) = β c_i(t-1) + (1 - β) c̄_i(t)     t ≤ T_w        (`smoothed`)
    c_i(t) = c_i(T_w)                         t > T_w        (nothing to do)

Weights are kept over every client ever seen and always sum to 1. What the paper leaves open:

- The clients present in a round share out the weight they hold together: with P the present ones and
  m = Σ_{i∈P} c_i, they move to β c_i + (1 - β) m c̄_i, and those absent keep theirs. With everybody present
  m = 1, which is the formula above.
- A client first seen later starts at the mean of the known weights; then all are scaled to sum 1.
- The weights a round averages with are those of the present clients, scaled to sum 1; where they hold
  nothing, all present count the same.
- Scores that sum to 0 (no evidence at all) leave the weights as they were.
- Where c(0) is to count for nothing, clients scored for the first time take β = 0; all present are then scaled to m.
- Where silence is to cost something, c_i is multiplied by the part of the rounds it was asked in that i answered.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from celm.base.names import in_order


def warmup_rounds(rounds: int, fraction: float = 0.05) -> int:
    """T_w: the first 5 % of the rounds, at least one.

    >>> warmup_rounds(100), warmup_rounds(200), warmup_rounds(3)
    (5, 10, 1)
    """
    return max(1, round(fraction * rounds))


@dataclass(frozen=True)
class Weights:
    """The weight of every client ever seen; sums to 1 as soon as there is one."""

    of: Mapping[str, float] = field(default_factory=dict)

    def knowing(self, clients: Sequence[str]) -> Weights:
        """The same with newcomers added at the mean."""
        newcomers = [name for name in in_order(clients) if name not in self.of]
        if not newcomers:
            return self
        if not self.of:
            return Weights({name: 1 / len(newcomers) for name in newcomers})
        mean = math.fsum(self.of.values()) / len(self.of)
        return Weights(normalised({**self.of, **dict.fromkeys(newcomers, mean)}))

    def smoothed(self, scores: Mapping[str, float], beta: float, anew: Collection[str] = ()) -> Weights:
        """One warm-up step with the scores of the clients present, which sum to 1 (or to 0: no evidence).

        What clients `anew` had before does not count.
        """
        known = self.knowing(list(scores))
        if not math.fsum(scores.values()) > 0:
            return known
        held = math.fsum(known.of[name] for name in scores)
        kept = {name: 0.0 if name in anew else beta for name in scores}
        step = {name: kept[name] * known.of[name] + (1 - kept[name]) * held * scores[name] for name in scores}
        if anew and len(set(kept.values())) > 1:
            step = {name: held * weight for name, weight in normalised(step).items()}
        return Weights({name: step.get(name, weight) for name, weight in known.of.items()})

    def attended(self, asked: Mapping[str, int], answered: Mapping[str, int]) -> Weights:
        """By how often a client answered when it was asked; of who never was, nothing is known."""
        if asked == answered:
            return self
        part = {name: answered.get(name, 0) / times for name, times in asked.items()}
        return Weights(normalised({name: part.get(name, 1) * weight for name, weight in self.of.items()}))

    def among(self, clients: Sequence[str]) -> dict[str, float]:
        """The weights to average with when only `clients` are present: on the simplex, in client order."""
        known = self.knowing(clients)
        return normalised({name: known.of[name] for name in in_order(clients)})


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Scaled to sum 1; uniform where there is nothing to scale."""
    total = math.fsum(weights.values())
    if not total > 0:
        return dict.fromkeys(weights, 1 / len(weights)) if weights else {}
    return {name: weight / total for name, weight in weights.items()}
