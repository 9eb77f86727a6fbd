"""Send messages to nodes and collect the replies, each by itself.

`Grid.send_and_receive` reads all replies in one call. A reply that Flower cannot decode, such as one with an unset
protobuf value, then raises for all nodes and ends the federation. Here each reply is pulled by its own call: one that
cannot be read becomes an error reply of its sender.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import WARNING
from typing import TYPE_CHECKING

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from celm.live.logger import log

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_POLL_SECONDS = 3.0
"""Seconds between two polls of a deployment, as in Flower's own grids. Its simulation has `pull_interval`."""
_MAX_EMPTY_PULLS = 10
"""Pulls without a reply after which a pass over the nodes ends: each costs a request. The last pass has no limit."""


def send_and_receive(grid: Grid, messages: Iterable[Message], timeout: float | None) -> list[Message]:
    """Send the messages and return the replies that arrive within `timeout` seconds, or at any time if it is None.

    A message that the grid does not accept and a reply that cannot be read are returned as error replies. A grid with
    its own `send_and_receive` is called as it is, because that method may do more than push and pull.
    """
    sent = list(messages)
    if not _has_flower_exchange(grid):
        return list(grid.send_and_receive(sent, timeout=timeout))
    if not sent:
        return []
    accepted = set(grid.push_messages(sent))
    pending = {message.metadata.message_id: message for message in sent}
    replies = [
        _error_reply(message, "the SuperLink did not accept its message")
        for message_id, message in pending.items()
        if message_id not in accepted
    ]
    pending = {message_id: message for message_id, message in pending.items() if message_id in accepted}
    deadline = None if timeout is None else time.monotonic() + timeout
    interval = float(getattr(grid, "pull_interval", _POLL_SECONDS))
    while pending:
        is_last_pass = deadline is not None and time.monotonic() >= deadline
        num_empty = 0
        for message_id, message in list(pending.items()):
            del pending[message_id]
            pulled = _pull_replies(grid, message_id, message)
            replies += pulled
            if not pulled:
                pending[message_id] = message  # at the end: the next pass begins with the others
                num_empty += 1
            if num_empty == _MAX_EMPTY_PULLS and not is_last_pass:
                break
        if is_last_pass or not pending:
            break
        time.sleep(interval if deadline is None else max(0.0, min(interval, deadline - time.monotonic())))
    return replies


def _has_flower_exchange(grid: Grid) -> bool:
    """Return whether the grid's `send_and_receive` is Flower's own, which only pushes and pulls."""
    method = getattr(grid, "send_and_receive", None)
    return str(getattr(method, "__module__", "")).partition(".")[0] == "flwr"


def _pull_replies(grid: Grid, message_id: str, message: Message) -> list[Message]:
    """Return what a node replied to one message; an error reply if that cannot be read or answers another message."""
    try:
        pulled = list(grid.pull_messages([message_id]))
        # Flower reads this id from bytes that the node made. It must not reply in another node's name.
        answers = [reply for reply in pulled if reply.metadata.reply_to_message_id == message_id]
    except Exception as error:  # the bytes come from a node, and Flower raises any type of error
        grid.get_node_ids()  # raises if the connection is lost: then the reply is not to blame
        log(WARNING, "the reply of node %d cannot be read", message.metadata.dst_node_id, exc_info=error)
        return [_error_reply(message, f"Flower cannot read it ({type(error).__name__}: {str(error)[:100]})")]
    return answers or [_error_reply(message, "it answers another message") for _ in pulled[:1]]


def _error_reply(message: Message, reason: str) -> Message:
    return Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, reason), reply_to=message)
