"""A client that takes part under several names.

    clients -> clients and NAME-sybil-1 ... NAME-sybil-m        m = strength; all of them hold the same samples

Each identity draws its batches for itself, so that no two uploads are the same; all that a split says of the client
(a free-rider, wrong labels, no training) holds for each of them. What the attacker gets is what its identities get
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from pydantic import Field

from celm.attacks.attack import Attack
from celm.base.names import in_order
from celm.data.split import Dealing

Said = TypeVar("Said")


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
        rides = self.client in dealing.free_riders
        return replace(
            dealing,
            clients={name: clients[name] for name in in_order(clients)},
            free_riders=(*dealing.free_riders, *names) if rides else dealing.free_riders,
            relabelled=self.shared(dealing.relabelled, names),
            behaviours=self.shared(dealing.behaviours, names),
        )

    def shared(self, said: Mapping[str, Said], names: Sequence[str]) -> dict[str, Said]:
        """What is said of clients, with what is said of this one said of its names, too."""
        return {**said, **dict.fromkeys(names, said[self.client])} if self.client in said else dict(said)

    def beside(self, behaviour: Attack) -> Attack:
        return behaviour
