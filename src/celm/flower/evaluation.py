"""Match evaluation replies to clients, and average the metrics in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message, MetricRecord, RecordDict

from celm.flower.metrics import MetricsAggregateFn, aggregate_metrics, to_metric_record
from celm.flower.reply_validation import describe_error
from celm.live.client_metrics import AggregatedMetrics
from celm.live.logger import log
from celm.live.metrics_log import MetricsLog


@dataclass
class Evaluation:
    """The evaluation of the global model by clients: the messages of a round, and the result of its replies."""

    round_number: int | None = None
    messages: Mapping[str, Message] = field(default_factory=dict)
    result: AggregatedMetrics = field(default_factory=AggregatedMetrics)
    log: MetricsLog = field(default_factory=lambda: MetricsLog("evaluation"))

    def begin(self, round_number: int, messages: Mapping[str, Message]) -> list[Message]:
        """Remember which client each message is for; return the messages."""
        self.round_number, self.messages, self.result = round_number, messages, AggregatedMetrics()
        return list(messages.values())

    def aggregate(
        self,
        round_number: int,
        replies: Iterable[Message],
        key: str,
        aggregate_fn: MetricsAggregateFn | None,
    ) -> MetricRecord | None:
        """Return the mean of the reported metrics. Clients that are left out are logged and kept for the record."""
        messages = self.messages if self.round_number == round_number else {}
        contents, unusable = _contents_by_client(match_replies(replies, messages), messages)
        aggregated = aggregate_metrics(contents, key, aggregate_fn)
        excluded = {**unusable, **aggregated.excluded}
        self.round_number, self.messages = round_number, {}
        self.result = self.log.update(AggregatedMetrics(aggregated.values, excluded, aggregated.capped))
        return to_metric_record(aggregated.values)

    def record(self, round_number: int) -> dict[str, dict[str, str]]:
        """Return what the record says about the clients of a round."""
        result = self.result if self.round_number == round_number else AggregatedMetrics()
        return {"excluded": dict(result.excluded), "capped": dict(result.capped)}


def match_replies(replies: Iterable[Message], messages: Mapping[str, Message]) -> dict[str, list[Message]]:
    """Return client to its replies: by the message that a reply answers, else by node.

    A wrapper of the strategy may send messages of its own, or none may be known. Then no reply answers a known message,
    and a client is named by its node. Otherwise a reply that answers no message of the round is ignored.
    """
    received = list(replies)
    by_message = {m.metadata.message_id: client for client, m in messages.items() if m.metadata.message_id}
    by_node = {message.metadata.dst_node_id: client for client, message in messages.items()}
    answers_known = any(reply.metadata.reply_to_message_id in by_message for reply in received)
    matched: dict[str, list[Message]] = {}
    for reply in received:
        node = reply.metadata.src_node_id
        client = by_message.get(reply.metadata.reply_to_message_id)
        if client is None and answers_known:
            log(WARNING, "\t> ignored: node %s answers no evaluation message of this round", node)
            continue
        matched.setdefault(client or by_node.get(node, f"node {node}"), []).append(reply)
    return matched


def _contents_by_client(
    replies: Mapping[str, Sequence[Message]], asked: Iterable[str]
) -> tuple[dict[str, RecordDict], dict[str, str]]:
    """Return the contents of the usable replies, and why the others are not usable."""
    contents: dict[str, RecordDict] = {}
    unusable = {client: "no reply in time" for client in asked if client not in replies}
    for client, messages in replies.items():
        if len(messages) > 1:
            unusable[client] = f"replied {len(messages)} times"
        elif messages[0].has_error():
            unusable[client] = describe_error(messages[0])
        else:
            contents[client] = messages[0].content
    return contents, unusable
