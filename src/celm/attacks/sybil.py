"""A client that takes part under several names.

    clients -> clients and NAME-sybil-1 ... NAME-sybil-m        m = strength; all of them hold the same samples

Each identity draws its batches for itself, so that no two uploads are the same. What the attacker gets is what its
identities get together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Attack
from celm.base.names import in_order
from celm.data.split import Dealing


@dataclass(frozen=True)
class Sybil(Attack):
    """Takes part under so many further names, with the same data."""

    strength: Annotated[int, Field(ge=0, le=1000)] = 1
    """How many further names."""

    def deal(self, dealing: Dealing) -> Dealing:
        if self.client not in dealing.clients:
            return dealing
        names = [f"{self.client}-sybil-{i}" for i in range(1, self.strength + 1)]
        clients = {**dealing.clients, **dict.fromkeys(names, dealing.clients[self.client])}
        relabelled = dict(dealing.relabelled)
        if self.client in relabelled:
            relabelled |= dict.fromkeys(names, relabelled[self.client])
        return replace(
            dealing, clients={name: clients[name] for name in in_order(clients)}, relabelled=relabelled
        )
