"""Krum and Multi-Krum: only the updates that lie closest to their neighbours count.

    s_i = Σ ||Δ_i - Δ_j||²   over the n - f - 2 updates j nearest to i        Δ against what each was delivered

The `selected` updates of least score stay, the first of equals in client order. Krum is proven for n ≥ 2f + 3.
With fewer clients it goes on with max(1, n - f - 2) neighbours and no such promise; a client alone stays, and of
two the first. A client whose data are like nobody else's looks like an attacker to Krum.

Reference: Blanchard, El Mhamdi, Guerraoui & Stainer, Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent, NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.base.names import in_order
from celm.rules.exchange import Round
from celm.rules.robust.filter import Filter, Filtered


@dataclass(frozen=True)
class Krum(Filter):
    """Keeps the update, or the few, closest to their neighbours."""

    malicious: Annotated[int, Field(ge=0)] = 1
    """f: how many clients of a round may be malicious."""
    selected: Annotated[int, Field(ge=1)] = 1
    """How many updates stay; more than one is Multi-Krum."""

    def apply(self, round: Round) -> Filtered:
        names = in_order(round.clients)
        found = scores(squared_distances(round, names), self.malicious)
        score = dict(zip(names, found.tolist(), strict=True))
        kept = set(sorted(names, key=lambda name: score[name])[: self.selected])
        updates = {name: update for name, update in round.updates.items() if name in kept}
        delivered = {name: round.delivered[name] for name in updates}
        excluded = {
            name: f"Krum score {score[name]:.4g} is not among the {self.selected} lowest"
            for name in names
            if name not in kept
        }
        return Filtered(replace(round, updates=updates, delivered=delivered), excluded)


def squared_distances(round: Round, names: list[str]) -> Tensor:
    """`[n, n]` between updates, in float64; tensor by tensor, so that one tensor of each is in memory."""
    total = torch.zeros(len(names), len(names), dtype=torch.float64)
    for key, tensor in round.start.items():
        if not tensor.is_floating_point():
            continue
        steps = torch.stack(
            [
                round.updates[name].model[key].double() - round.delivered[name].model[key].double()
                for name in names
            ]
        ).reshape(len(names), -1)
        # Not by products, which lose the small distances between long updates.
        apart = torch.cdist(steps, steps, compute_mode="donot_use_mm_for_euclid_dist").square()
        total += apart.to(total)
    return total.nan_to_num(nan=torch.inf, posinf=torch.inf)


def scores(distances: Tensor, malicious: int) -> Tensor:
    """Krum's `[n]` from squared distances `[n, n]`."""
    n = len(distances)
    neighbours = max(1, n - malicious - 2)
    # Without the diagonal: the distance of an update to itself is no neighbour's.
    others = distances[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
    return others.sort(dim=1).values[:, :neighbours].sum(dim=1)
