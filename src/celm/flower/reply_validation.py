"""Validate the replies of a round. A bad reply excludes its client and never stops the round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from logging import WARNING

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from celm.base.text import quote as quote_name
from celm.flower.array_codec import FlowerLayout
from celm.flower.head_records import echoed_head
from celm.live import client_replies
from celm.live.array_layout import InvalidReplyError
from celm.live.client_replies import ClientReplies, parse_accuracy, parse_count
from celm.live.logger import log
from celm.rules.messages import ClientUpdate, LazyUpdate

_NUM_STEPS_KEY = "num-steps"
"""Metric in which a client may report its number of local steps."""
MODEL_TO_EVALUATE_KEY = "examine"
"""Record in which a rule sends a second model, for the client to evaluate."""
_REPORTED_ACCURACY_KEY = "examined-accuracy"
"""Metric in which a client reports the accuracy of that model."""

_ERROR_REASONS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its app could not be loaded",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its app raised an error",
    ErrorCode.MESSAGE_UNAVAILABLE: "its reply could not be fetched",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its reply came too late",
    ErrorCode.NODE_UNAVAILABLE: "it left during the round",
    ErrorCode.CLIENT_APP_CRASHED: "its app crashed",
}


@dataclass(frozen=True)
class ValidatedReplies(ClientReplies):
    contents: Mapping[str, RecordDict] = field(default_factory=dict)
    """Client to the content of its usable reply."""


def validate_replies(
    replies: Iterable[Message],
    message_ids: Mapping[str, str],
    layout: FlowerLayout,
    array_key: str,
    size_key: str,
    node_ids: Mapping[str, int] | None = None,
) -> ValidatedReplies:
    """Match replies to clients and parse them; `message_ids` maps each client to the id of its message.

    A reply is matched by the message that it answers, because the SuperLink may reply with an error for a node. If a
    wrapper sent a message of its own, its id is not known and the reply is matched by the client's node in `node_ids`.
    """
    client_of = {message_id: client for client, message_id in message_ids.items() if message_id}
    client_of_node = {node: client for client, node in (node_ids or {}).items() if not message_ids[client]}
    reply_by_client: dict[str, Message] = {}
    unexpected: list[str] = []
    reply_counts: Counter[str] = Counter()
    for reply in replies:
        source = reply.metadata.src_node_id
        client = client_of.get(reply.metadata.reply_to_message_id) or client_of_node.get(source)
        if client is None:
            unexpected.append(f"node {source} answers no message of this round")
            continue
        reply_counts[client] += 1
        reply_by_client[client] = reply
    is_lazy = layout.num_bytes * len(reply_by_client) >= client_replies.LAZY_BYTES
    updates: dict[str, ClientUpdate] = {}
    contents: dict[str, RecordDict] = {}
    excluded: dict[str, str] = {}
    for client in message_ids:
        try:
            if client not in reply_by_client:
                raise InvalidReplyError("no reply in time")
            if reply_counts[client] > 1:
                raise InvalidReplyError(f"replied {reply_counts[client]} times")
            updates[client] = parse_reply(reply_by_client[client], layout, array_key, size_key, is_lazy)
            contents[client] = reply_by_client[client].content
        except InvalidReplyError as invalid_reply:
            excluded[client] = str(invalid_reply)
        except Exception as error:  # unforeseen; the log has the traceback
            log(WARNING, "the reply of %s cannot be read", client, exc_info=error)
            excluded[client] = f"cannot be read ({type(error).__name__})"
    echoes = {client: echoed_head(content) for client, content in contents.items()}
    witnesses = {client: digest for client, digest in echoes.items() if digest is not None}
    return ValidatedReplies(updates, excluded, unexpected, contents, witnesses=witnesses)


def parse_reply(
    reply: Message, layout: FlowerLayout, array_key: str, size_key: str, is_lazy: bool = False
) -> ClientUpdate:
    """Return the update in a reply; raise `InvalidReplyError` if it is not usable.

    A lazy update is decoded once to check it, and again on every use. Its bytes are those of the reply.
    """
    if reply.has_error():
        raise InvalidReplyError(describe_error(reply))
    arrays = _single_array_record(reply.content, array_key)
    state = layout.decode_state(arrays)
    num_steps = parse_count(_find_metric(reply.content, _NUM_STEPS_KEY), 1, "local steps")
    num_examples = parse_count(_find_metric(reply.content, size_key), 0, "samples")
    accuracy = parse_accuracy(_find_metric(reply.content, _REPORTED_ACCURACY_KEY))
    if is_lazy:
        decode = partial(layout.decode_state, arrays)
        return LazyUpdate(decode, num_steps, num_examples, reported_accuracy=accuracy)  # type: ignore[arg-type]
    return ClientUpdate(state, num_steps, num_examples, reported_accuracy=accuracy)


def describe_error(reply: Message) -> str:
    """Return what a reply with an error says, for log and record."""
    reason = _ERROR_REASONS.get(reply.error.code, f"error {reply.error.code}")
    return f"{reason}: {quote_name(reply.error.reason, 200)}"


def _single_array_record(content: RecordDict, key: str) -> ArrayRecord:
    """Return the only array record of a reply, under any key."""
    array_records = content.array_records
    if len(array_records) == 1:
        return next(iter(array_records.values()))
    if not array_records:
        raise InvalidReplyError("no arrays in its reply")
    if key in array_records:
        extra = next(name for name in array_records if name != key)
        raise InvalidReplyError(f"unexpected array record {quote_name(extra)}")
    raise InvalidReplyError(f"{len(array_records)} array records in its reply")


def _find_metric(content: RecordDict, key: str) -> object:
    record: MetricRecord
    for record in content.metric_records.values():
        if key in record:
            return record[key]
    return None
