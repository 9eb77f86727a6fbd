"""Pass events of a federation on to people: to a web address, or to a command.

Alerts are sent by a thread of their own, each within its time limit. An alert that fails is logged and not repeated.
It never costs a round: the federation does not wait for alerts, except a bounded time at its end.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.text import format_exception, printable, truncate

_MAX_WAITING = 1000
"""Alerts that wait to be sent; further ones are dropped, with a warning."""
_CLOSE_SECONDS = 15.0
"""How long the end of a federation waits for alerts that are not sent yet."""


@dataclass(frozen=True)
class Event:
    """Something that an operator should know."""

    event: str
    """`flag`, `accuracy`, `failed_attempt` or `stopped`."""
    round: int
    text: str
    """One sentence."""
    client: str | None = None
    kind: str | None = None
    """The kind of a flag, such as `idle` (see `celm.federation.flags`)."""
    reason: str | None = None
    folder: str | None = None
    """The state folder."""

    def to_json(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if value is not None}
        return {name: printable(value) if isinstance(value, str) else value for name, value in values.items()}


class Alert(Protocol):
    """A way to pass on events. `send` raises an exception if it fails."""

    timeout: float

    def send(self, event: Event) -> None: ...


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirections: the event is meant for the given address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True, repr=False)
class Webhook:
    """POST each event as JSON to an address. Its key `text` is what Slack, Mattermost and others show."""

    url: str
    timeout: float = 10.0
    """Seconds for one event."""
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        _check_timeout(self)
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except (ValueError, AttributeError, TypeError):
            valid = False
        if not valid:
            raise CelmError("Webhook: url is not an address", "give an address that begins with https://")

    def __repr__(self) -> str:  # the path of such an address is often a secret
        parts = urlsplit(self.url)
        return f"Webhook({parts.scheme}://{parts.hostname}/…)"

    def send(self, event: Event) -> None:
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked
            self.url,
            dump_json(event.to_json()).encode(),
            {"Content-Type": "application/json", "User-Agent": "celm", **(self.headers or {})},
            method="POST",
        )
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            opener.open(request, timeout=self.timeout).close()
        except HTTPError as error:
            error.close()
            raise RuntimeError(f"HTTP status {error.code}") from None


@dataclass(frozen=True)
class Command:
    """Run a command for each event, with the event as JSON on its standard input. No shell is involved."""

    arguments: Sequence[str]
    timeout: float = 30.0
    """Seconds, after which the command is killed."""

    def __post_init__(self) -> None:
        _check_timeout(self)
        is_list = isinstance(self.arguments, list | tuple)
        if not is_list or not self.arguments or not all(isinstance(part, str) for part in self.arguments):
            raise CelmError("Command: arguments must be a list of texts", "as in Command(['mail', 'ops'])")

    def send(self, event: Event) -> None:
        # Files and not pipes: a grandchild that holds a pipe would make the wait for its end unbounded.
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
            source.write(dump_json(event.to_json()).encode() + b"\n")
            source.seek(0)
            with subprocess.Popen(  # noqa: S603 - the operator's own command
                list(self.arguments),
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=os.name == "posix",
            ) as process:
                try:
                    code = process.wait(self.timeout)
                except subprocess.TimeoutExpired:
                    _kill_group(process)
                    raise TimeoutError(f"killed after {self.timeout:g} s") from None
            if code:
                errors.seek(0)
                text = errors.read(2000).decode(errors="replace")
                raise RuntimeError(f"exit code {code}{': ' if text.strip() else ''}{text.strip()}")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and what it started."""
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _check_timeout(alert: Webhook | Command) -> None:
    timeout = alert.timeout
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise CelmError(f"{type(alert).__name__}: timeout must be a number of seconds above 0")


class AlertSender:
    """Sends events in the order in which they come, in a thread that starts with the first one."""

    def __init__(self, alerts: Sequence[Alert], warn: Callable[[str], None]) -> None:
        self.alerts = tuple(alerts)
        self._warn = warn
        self._waiting: queue.Queue[Event] = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None

    def send(self, event: Event) -> None:
        """Send the event later; return at once."""
        if not self.alerts:
            return
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._warn(f"alert dropped, because {_MAX_WAITING} others wait: {event.text}")
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._send_all, name="celm-alerts", daemon=True)
            self._thread.start()

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Wait for the alerts that are not sent yet, at most this time."""
        finished = threading.Thread(target=self._waiting.join, daemon=True)
        finished.start()
        finished.join(seconds)
        if finished.is_alive():
            self._warn(f"some alerts were not sent within {seconds:g} s")

    def _send_all(self) -> None:
        while True:
            event = self._waiting.get()
            for alert in self.alerts:
                self._send_one(alert, event)
            self._waiting.task_done()

    def _send_one(self, alert: Alert, event: Event) -> None:
        """Send within the time limit. What exceeds it, such as a server that never ends its answer, is left behind."""
        failure: list[BaseException] = []

        def attempt() -> None:
            try:
                alert.send(event)
            except Exception as error:  # whatever a webhook or command does, the federation goes on
                failure.append(error)

        # A limit on the socket alone bounds neither a slow answer nor the search for the host's address.
        worker = threading.Thread(target=attempt, name="celm-alert", daemon=True)
        worker.start()
        worker.join(alert.timeout + 1)
        if worker.is_alive():
            failure.append(TimeoutError(f"no answer within {alert.timeout:g} s"))
        if failure:
            reason = format_exception(failure[0], 200)
            self._warn(truncate(f"alert failed: {alert!r}: {reason} ({event.text})", 600))
