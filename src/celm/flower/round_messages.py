"""The messages that ask clients to train or to evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from celm.flower.array_codec import FlowerLayout
from celm.flower.head_records import head_record
from celm.flower.reply_validation import MODEL_TO_EVALUATE_KEY
from celm.rules.messages import ServerMessage


def make_train_messages(
    layout: FlowerLayout,
    server_messages: Mapping[str, ServerMessage],
    nodes: Mapping[str, int],
    config: ConfigRecord,
    keys: tuple[str, str],
    heads: Mapping[str, str],
) -> dict[str, Message]:
    """Return the message to each client.

    `keys` name the record of arrays and the config. `heads` has the signed head of the record for each client; it is
    empty if the record is not signed.
    """
    arrays_key, config_key = keys
    messages: dict[str, Message] = {}
    for client, server_message in server_messages.items():
        content = RecordDict(
            {arrays_key: layout.encode_state(server_message.model), config_key: config.copy()}
        )
        if server_message.model_to_evaluate is not None:
            content[MODEL_TO_EVALUATE_KEY] = layout.encode_state(server_message.model_to_evaluate)
        if client in heads:
            content.update(head_record(heads[client]))
        messages[client] = Message(content, nodes[client], MessageType.TRAIN)
    layout.encoded_cache.clear()
    return messages


def make_evaluate_messages(
    content: Mapping[str, Any], clients: Sequence[str], nodes: Mapping[str, int], heads: Mapping[str, str]
) -> dict[str, Message]:
    """Return the message to each client that evaluates. `content` are the records that all of them get."""
    shared = RecordDict(dict(content))
    messages: dict[str, Message] = {}
    for client in clients:
        own = RecordDict({**content, **head_record(heads[client])}) if client in heads else shared
        messages[client] = Message(own, nodes[client], MessageType.EVALUATE)
    return messages
