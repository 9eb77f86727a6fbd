"""A client that takes part under several names.

    clients -> clients and NAME-sybil-1 ... NAME-sybil-m        m = strength; all of them hold the same samples

Each identity draws its own batches, so no two uploads are equal. If the split makes the client a free-rider or gives
it wrong labels or an attack, this applies to each identity. The attacker earns the sum of what its identities earn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from pydantic import Field

from celm.attacks.attack import Attack
from celm.base.client_order import natural_sorted
from celm.data.split import Partition

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Sybil(Attack):
    """Takes part under several names with the same data.

    `strength` is the number of further names.
    """

    strength: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of further names."""

    def transform_partition(self, partition: Partition) -> Partition:
        if self.client not in partition.clients:
            return partition
        identities = [f"{self.client}-sybil-{i}" for i in range(1, self.strength + 1)]
        clients = {**partition.clients, **dict.fromkeys(identities, partition.clients[self.client])}
        is_free_rider = self.client in partition.free_riders
        return replace(
            partition,
            clients={name: clients[name] for name in natural_sorted(clients)},
            free_riders=(*partition.free_riders, *identities) if is_free_rider else partition.free_riders,
            relabelled=self._copy_to_identities(partition.relabelled, identities),
            attacks=self._copy_to_identities(partition.attacks, identities),
        )

    def _copy_to_identities(
        self, by_client: Mapping[str, _Value], identities: Sequence[str]
    ) -> dict[str, _Value]:
        """Return `by_client` with the attacker's value, if it has one, also for its identities."""
        return (
            {**by_client, **dict.fromkeys(identities, by_client[self.client])}
            if self.client in by_client
            else dict(by_client)
        )

    def combine_with(self, behaviour: Attack) -> Attack:
        return behaviour
