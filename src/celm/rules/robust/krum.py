"""Krum and Multi-Krum: keep only the updates that are closest to their neighbours.

    s_i = Σ ||Δ_i - Δ_j||²   over the n - f - 2 updates j nearest to i        Δ_i = w_i - the model sent to client i

The `selected` updates with the lowest scores are kept, ties in client order. Krum is proven for n ≥ 2f + 3. With fewer
clients it uses max(1, n - f - 2) neighbours, without that guarantee. A single client is kept; of two clients,
the first. A client with unusual data looks like an attacker to Krum.

Reference: Blanchard, El Mhamdi, Guerraoui & Stainer, Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent, NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.rules.messages import RoundData
from celm.rules.robust.filter import Filter, FilterResult


@dataclass(frozen=True)
class Krum(Filter):
    """Selection of the one or few updates that are closest to their neighbours."""

    malicious: Annotated[int, Field(ge=0)] = 1
    """f, the number of malicious clients to tolerate in a round."""
    selected: Annotated[int, Field(ge=1)] = 1
    """Number of updates to keep; more than one is Multi-Krum."""

    def apply(self, round: RoundData) -> FilterResult:
        names = natural_sorted(round.clients)
        scores = _krum_scores(_squared_distances(round, names), self.malicious)
        score_by_client = dict(zip(names, scores.tolist(), strict=True))
        selected_clients = set(sorted(names, key=lambda name: score_by_client[name])[: self.selected])
        updates = {name: update for name, update in round.updates.items() if name in selected_clients}
        excluded = {
            name: f"its Krum score is not among the {self.selected} lowest: {score_by_client[name]:.4g}"
            for name in names
            if name not in selected_clients
        }
        # A client that Krum did not select was not silent; one without an update was.
        messages = {name: message for name, message in round.messages.items() if name not in excluded}
        return FilterResult(replace(round, updates=updates, messages=messages), excluded)


def _squared_distances(round: RoundData, names: list[str]) -> Tensor:
    """Return the squared distances `[n, n]` between updates in float64, summed tensor by tensor to save memory."""
    total = torch.zeros(len(names), len(names), dtype=torch.float64)
    for key, tensor in round.global_model.items():
        if not tensor.is_floating_point():
            continue
        deltas = torch.stack(
            [
                round.updates[name].model[key].double() - round.messages[name].model[key].double()
                for name in names
            ]
        ).reshape(len(names), -1)
        # Without matrix products, which lose small distances between long updates.
        distances = torch.cdist(deltas, deltas, compute_mode="donot_use_mm_for_euclid_dist").square()
        total += distances.to(total)
    return total.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _krum_scores(distances: Tensor, malicious: int) -> Tensor:
    """Return the scores `[n]` from squared distances `[n, n]`."""
    n = len(distances)
    neighbours = max(1, n - malicious - 2)
    # Without the diagonal: an update is not its own neighbour.
    others = distances[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
    return others.sort(dim=1).values[:, :neighbours].sum(dim=1)
