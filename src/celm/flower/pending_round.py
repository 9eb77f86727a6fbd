"""A round whose replies are awaited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message

from celm.live.live_federation import LiveRound


@dataclass(frozen=True)
class PendingRound:
    sent: LiveRound
    messages: Mapping[str, Message]
    """Client to the message that carries its server message."""
    sent_at: float

    @property
    def message_ids(self) -> dict[str, str]:
        """Client to the id of its message; empty if a wrapper sent a message of its own in place of it."""
        return {client: message.metadata.message_id for client, message in self.messages.items()}

    @property
    def node_ids(self) -> dict[str, int]:
        return {client: message.metadata.dst_node_id for client, message in self.messages.items()}
