"""Attendance: how often each client answered, so that a client cannot keep weight by staying silent.

    c_i replies_i / requests_i    over the warm-up rounds with evidence; then all weights are scaled to sum 1
    β = 0                         in the first round that scores a client, so that c_i(0) = 1/N does not count

The rule `celm` records attendance with calibrated evidence. In the paper every client answers in every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from celm.core.weights import ClientWeights, normalise_weights


@dataclass(frozen=True)
class Attendance:
    """Requests and usable replies of each client.

    >>> Attendance().record(["a", "b"], replied=["a"]).apply(ClientWeights({"a": 0.5, "b": 0.5})).by_client
    {'a': 1.0, 'b': 0.0}
    """

    requests: Mapping[str, int] = field(default_factory=dict)
    replies: Mapping[str, int] = field(default_factory=dict)

    def record(self, requested: Iterable[str], replied: Iterable[str]) -> Attendance:
        """Count one round."""
        return Attendance(_increment(self.requests, requested), _increment(self.replies, replied))

    def newcomers(self, clients: Iterable[str]) -> set[str]:
        """Return the clients without any reply so far."""
        return set(clients).difference(self.replies)

    def contributions(self, weights: ClientWeights) -> ClientWeights:
        """Return the weights without those of clients that never replied: c_i(0) alone is no contribution.

        >>> Attendance().record(["a", "b"], replied=["a"]).contributions(ClientWeights({"a": 0.5, "b": 0.5})).by_client
        {'a': 1.0, 'b': 0.0}
        """
        silent = set(self.requests).difference(self.replies)
        if not silent:
            return weights
        return ClientWeights(
            normalise_weights(
                {name: 0.0 if name in silent else weight for name, weight in weights.by_client.items()}
            )
        )

    def apply(self, weights: ClientWeights) -> ClientWeights:
        """Scale weights by response rates; a client without requests has rate 1."""
        return weights.scale_by_response_rate(self.requests, self.replies)


def _increment(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    return {**counts, **{name: counts.get(name, 0) + 1 for name in names}}
