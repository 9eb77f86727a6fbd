"""Which replies of a round count, and why the others do not. One bad client never stops a round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore import log

from celm.flower.arrays import Layout, Refusal
from celm.models.state import shown
from celm.rules.exchange import Update

STEPS = "num-steps"
"""Metric by which a client may say how many local steps it took."""
EXAMINE = "examine"
"""Record in which a rule sends a second model to be judged."""
EXAMINED = "examined-accuracy"
"""Metric by which a client says how good it found that model."""

ERRORS = {
    1: "its app could not be loaded",
    2: "its app raised an error",
    3: "its reply could not be fetched",
    4: "its reply came too late",
    5: "it left during the round",
    8: "its app crashed",
}


@dataclass(frozen=True)
class Intake:
    """The usable updates of a round, in the order of the clients asked, and the reason for each exclusion."""

    updates: Mapping[str, Update]
    contents: Mapping[str, RecordDict]
    excluded: Mapping[str, str]
    strays: list[str] = field(default_factory=list)
    """Replies that belong to nobody asked in this round."""


def take_in(
    replies: Iterable[Message], asked: Mapping[str, str], layout: Layout, records: str, sizes: str
) -> Intake:
    """Sort replies by whom they come from: `asked` is client to the id of the message it was sent.

    Who replied is told by the message that is answered, as an error may come from the SuperLink in a node's stead.
    """
    client_of = {message_id: client for client, message_id in asked.items()}
    found: dict[str, Message] = {}
    strays: list[str] = []
    times: Counter[str] = Counter()
    for reply in replies:
        client = client_of.get(reply.metadata.reply_to_message_id)
        if client is None:
            strays.append(f"node {reply.metadata.src_node_id} answers no message of this round")
            continue
        times[client] += 1
        found[client] = reply
    updates: dict[str, Update] = {}
    contents: dict[str, RecordDict] = {}
    excluded: dict[str, str] = {}
    for client in asked:
        try:
            if client not in found:
                raise Refusal("no reply in time")
            if times[client] > 1:
                raise Refusal(f"replied {times[client]} times")
            updates[client] = read(found[client], layout, records, sizes)
            contents[client] = found[client].content
        except Refusal as refusal:
            excluded[client] = str(refusal)
        except Exception as error:  # no list of checks foresees everything; the log has where it happened
            log(WARNING, "the reply of %s cannot be read", client, exc_info=error)
            excluded[client] = f"cannot be read ({type(error).__name__})"
    return Intake(updates, contents, excluded, strays)


def read(reply: Message, layout: Layout, records: str, sizes: str) -> Update:
    """The update in a reply, or a `Refusal`."""
    if reply.has_error():
        reason = ERRORS.get(reply.error.code, f"error {reply.error.code}")
        raise Refusal(f"{reason}: {shown(reply.error.reason, 200)}")
    arrays = array_record(reply.content, records)
    return Update(
        layout.unpack(arrays),
        steps=int(number(reply.content, STEPS, default=1, what="local steps")),
        size=int(number(reply.content, sizes, default=0, what="samples")),
        examined=examined(reply.content),
    )


def array_record(content: RecordDict, key: str) -> ArrayRecord:
    """The one array record of a reply, whatever it is called."""
    found = content.array_records
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise Refusal("no arrays in its reply")
    if key in found:
        extra = next(name for name in found if name != key)
        raise Refusal(f"unexpected array record {shown(extra)}")
    raise Refusal(f"{len(found)} array records in its reply")


def number(content: RecordDict, key: str, default: float, what: str) -> float:
    """A count that a client reports; none is `default`, nonsense is a refusal."""
    value = reported(content, key)
    if value is None:
        return default
    if not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise Refusal(f"says it has {shown(str(value), 40)} {what}")
    return value


def examined(content: RecordDict) -> float | None:
    value = reported(content, EXAMINED)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def reported(content: RecordDict, key: str) -> object:
    record: MetricRecord
    for record in content.metric_records.values():
        if key in record:
            return record[key]
    return None
