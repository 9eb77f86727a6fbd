"""From scores to aggregation weights, Eq. 13-14 of the paper: smooth during warm-up, then freeze.

    c_i(0) = 1/N
    c_i(t) = β c_i(t-1) + (1 - β) c̄_i(t)     t ≤ T_w        (`smooth`)
    c_i(t) = c_i(T_w)                         t > T_w        (no code needed)

Weights cover every client seen so far and always sum to 1. The paper leaves the following cases open:

- Absent clients keep their weights. The present clients P divide their total weight m = Σ_{i∈P} c_i among themselves:
  c_i becomes β c_i + (1 - β) m c̄_i. If all clients are present, m = 1, which is the formula above.
- A client first seen later starts at the mean weight. All weights are then scaled to sum 1.
- A round aggregates with the weights of the present clients, scaled to sum 1. If all are 0, they are made equal.
- Scores that sum to 0 (no evidence) leave the weights unchanged.
- Clients to `reset` take β = 0, so that c(0) does not count for them. All present clients are then scaled to m.
- `scale_by_response_rate` multiplies c_i by the fraction of requests that client i answered.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from celm.base.client_order import natural_sorted


def warmup_rounds(rounds: int, fraction: float = 0.05, minimum: int = 1) -> int:
    """Return T_w, by default the first 5 % of the rounds, at least `minimum` of them.

    >>> warmup_rounds(100), warmup_rounds(200), warmup_rounds(3), warmup_rounds(30, minimum=5)
    (5, 10, 1, 5)
    """
    return max(minimum, round(fraction * rounds))


@dataclass(frozen=True)
class ClientWeights:
    """The weight of every client seen so far. Weights sum to 1 if there is a client."""

    by_client: Mapping[str, float] = field(default_factory=dict)

    def with_clients(self, clients: Sequence[str]) -> ClientWeights:
        """Add new clients at the mean weight."""
        newcomers = [name for name in natural_sorted(clients) if name not in self.by_client]
        if not newcomers:
            return self
        if not self.by_client:
            return ClientWeights({name: 1 / len(newcomers) for name in newcomers})
        mean = math.fsum(self.by_client.values()) / len(self.by_client)
        return ClientWeights(normalise_weights({**self.by_client, **dict.fromkeys(newcomers, mean)}))

    def smooth(self, scores: Mapping[str, float], beta: float, reset: Collection[str] = ()) -> ClientWeights:
        """Apply Eq. 13 with the scores of the present clients, which sum to 1, or to 0 without evidence.

        Clients to `reset` take their score without their previous weight.
        """
        current = self.with_clients(list(scores))
        if not math.fsum(scores.values()) > 0:
            return current
        present_weight = math.fsum(current.by_client[name] for name in scores)
        client_beta = {name: 0.0 if name in reset else beta for name in scores}
        updated = {
            name: client_beta[name] * current.by_client[name]
            + (1 - client_beta[name]) * present_weight * scores[name]
            for name in scores
        }
        if reset and len(set(client_beta.values())) > 1:
            updated = {name: present_weight * weight for name, weight in normalise_weights(updated).items()}
        return ClientWeights({name: updated.get(name, weight) for name, weight in current.by_client.items()})

    def scale_by_response_rate(
        self, requests: Mapping[str, int], replies: Mapping[str, int]
    ) -> ClientWeights:
        """Multiply weights by replies / requests and normalise. A client without requests has rate 1."""
        if requests == replies:
            return self
        response_rate = {name: replies.get(name, 0) / count for name, count in requests.items()}
        return ClientWeights(
            normalise_weights(
                {name: response_rate.get(name, 1) * weight for name, weight in self.by_client.items()}
            )
        )

    def restricted_to(self, clients: Sequence[str]) -> dict[str, float]:
        """Return the aggregation weights if only `clients` are present: on the simplex, in client order."""
        current = self.with_clients(clients)
        return normalise_weights({name: current.by_client[name] for name in natural_sorted(clients)})


def normalise_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Scale weights to sum 1; make them uniform if they sum to 0."""
    total = math.fsum(weights.values())
    if not total > 0:
        return dict.fromkeys(weights, 1 / len(weights)) if weights else {}
    return {name: weight / total for name, weight in weights.items()}
