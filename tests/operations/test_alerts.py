"""Alerts: a real HTTP server receives them; what hangs or fails is logged, within bounded time."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.operations.alerts import AlertSender, Command, Event, Webhook
from support.http_receiver import http_receiver

EVENT = Event("flag", 6, "round 6: east is flagged", client="east", kind="idle", reason="shows no training")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http_receiver() as address_and_messages:
        yield address_and_messages


@pytest.fixture
def hanging_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that accepts connections and sends a byte now and then, without an end."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                while not stop.wait(0.1):
                    connection.send(b"H")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    stop.set()


def send_all(alerts: list[Any], events: list[Event], seconds: float = 15.0) -> list[str]:
    warnings: list[str] = []
    sender = AlertSender(alerts, warnings.append)
    for event in events:
        sender.send(event)
    sender.close(seconds)
    return warnings


def test_an_event_is_one_message(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, received = server
    second = Event("stopped", 7, "the federation stopped")
    assert send_all([Webhook(f"{url}/ok", headers={"Authorization": "Bearer x"})], [EVENT, second]) == []
    assert [message["body"] for message in received] == [
        {
            "event": "flag",
            "round": 6,
            "text": "round 6: east is flagged",
            "client": "east",
            "kind": "idle",
            "reason": "shows no training",
        },
        {"event": "stopped", "round": 7, "text": "the federation stopped"},
    ]
    assert received[0]["headers"]["Content-Type"] == "application/json"
    assert received[0]["headers"]["Authorization"] == "Bearer x"


def test_a_refusal_is_logged_and_others_are_still_sent(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, received = server
    alerts = [Webhook(f"{url}/error"), Webhook(f"{url}/redirect"), Webhook(f"{url}/ok")]
    first, second = send_all(alerts, [EVENT])
    assert "500" in first
    assert "302" in second
    assert [message["path"] for message in received] == ["/error", "/redirect", "/ok"]


def test_an_address_that_hangs_costs_a_bounded_time(
    hanging_address: str, server: tuple[str, list[dict[str, Any]]]
) -> None:
    url, received = server
    start = time.monotonic()
    warnings = send_all([Webhook(hanging_address, timeout=0.5), Webhook(f"{url}/ok")], [EVENT])
    assert time.monotonic() - start < 10
    assert "no answer within 0.5 s" in warnings[0]
    assert len(received) == 1


def test_sending_does_not_wait(hanging_address: str) -> None:
    sender = AlertSender([Webhook(hanging_address, timeout=5)], lambda _: None)
    start = time.monotonic()
    for _ in range(100):
        sender.send(EVENT)
    assert time.monotonic() - start < 1
    warnings: list[str] = []
    sender._warn = warnings.append
    sender.close(0.1)
    assert "were not sent within 0.1 s" in warnings[-1]


def test_the_secret_in_an_address_is_not_logged() -> None:
    webhook = Webhook("https://user:pass@127.0.0.1:1/services/T0/SECRET", timeout=2)
    (warning,) = send_all([webhook], [EVENT])
    assert "127.0.0.1" in warning
    assert "SECRET" not in warning
    assert "pass" not in warning


def test_a_command_gets_the_event(tmp_path: Path) -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    out = tmp_path / "a; touch b"
    assert send_all([Command([sys.executable, "-c", script, str(out)])], [EVENT]) == []
    assert json.loads(out.read_text())["client"] == "east"
    assert os.listdir(tmp_path) == [out.name]  # noqa: PTH208


@pytest.mark.skipif(os.name != "posix", reason="a shell")
def test_commands_that_fail_or_hang_are_logged(tmp_path: Path) -> None:
    child = "sleep 600 & echo $! > child; wait"
    alerts = [
        Command(["false"]),
        Command(["sh", "-c", "echo no mail >&2; exit 3"]),
        Command(["/no/such/program"]),
        Command(["sh", "-c", f"cd {tmp_path}; {child}"], timeout=1),
    ]
    start = time.monotonic()
    warnings = send_all(alerts, [EVENT])
    assert time.monotonic() - start < 12
    for warning, expected in zip(
        warnings,
        ("exit code 1", "exit code 3: no mail", "FileNotFoundError", "killed after 1 s"),
        strict=True,
    ):
        assert expected in warning
    number = int((tmp_path / "child").read_text())
    for _ in range(50):
        if not _is_running(number):
            break
        time.sleep(0.1)
    assert not _is_running(number)


def _is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("url", ["", "ftp://host/x", "https://", "localhost:80", "http://host:0", None, 7])
def test_what_is_not_an_address_is_refused(url: Any) -> None:
    with pytest.raises(CelmError, match="Webhook: url"):
        Webhook(url)


def test_other_wrong_arguments_are_refused() -> None:
    for arguments in ("mail ops", [], ["mail", 3]):
        with pytest.raises(CelmError, match="Command: arguments"):
            Command(arguments)  # type: ignore[arg-type]
    for timeout in (0, -1, float("inf"), float("nan"), "5", True):
        with pytest.raises(CelmError, match="timeout"):
            Webhook("http://host", timeout=timeout)  # type: ignore[arg-type]
