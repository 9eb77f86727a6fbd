"""Reputations that sum to 1 over all clients, as CGSV, RFFL and CFFL keep them from round to round.

    r_i = m u_i / Σ_{j∈P} u_j,   m = Σ_{j∈P} r_j        for the clients P of a round, u_i their new values
    client i is removed if r_i < κ / |R|                 κ: the threshold; R: all clients that were not removed

Absent clients keep their reputation and are not removed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from celm.core.weights import ClientWeights, normalise_weights


def share_reputation(previous: ClientWeights, values: Mapping[str, float]) -> ClientWeights:
    """Divide the total reputation of the clients in `values` among them, in proportion to their values."""
    total = math.fsum(previous.by_client[name] for name in values)
    shares = {name: total * share for name, share in normalise_weights(values).items()}
    return ClientWeights({**previous.by_client, **shares})


def remove_low_reputation(
    reputation: ClientWeights, candidates: Sequence[str], threshold: float
) -> tuple[ClientWeights, tuple[str, ...]]:
    """Remove the candidates below `threshold` times the mean reputation, unless no client would remain.

    Return the reputations of the remaining clients, scaled to sum 1, and the removed clients.
    """
    minimum = threshold / len(reputation.by_client)
    removed = tuple(name for name in candidates if reputation.by_client[name] < minimum)
    remaining = {name: value for name, value in reputation.by_client.items() if name not in removed}
    if not removed or not remaining:
        return reputation, ()
    return ClientWeights(normalise_weights(remaining)), removed
