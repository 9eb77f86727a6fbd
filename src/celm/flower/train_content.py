"""The content of a message that asks a client to train."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from celm.flower.array_codec import FlowerLayout
from celm.flower.reply_validation import MODEL_TO_EVALUATE_KEY
from celm.rules.messages import ServerMessage


def make_content(
    layout: FlowerLayout,
    message: ServerMessage,
    round_number: int,
    config: ConfigRecord,
    keys: tuple[str, str],
) -> RecordDict:
    """Return the records of a message. `keys` name the record of arrays and the config."""
    arrays_key, config_key = keys
    round_config = ConfigRecord({**config, "server-round": round_number})
    content = RecordDict({arrays_key: layout.encode_state(message.model), config_key: round_config})
    if message.model_to_evaluate is not None:
        content[MODEL_TO_EVALUATE_KEY] = layout.encode_state(message.model_to_evaluate)
    return content
