"""Log lines as JSON objects, one per line, for programs that collect logs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from flwr.common.logger import FLOWER_LOGGER, ConsoleHandler

from celm.base.errors import CelmError
from celm.base.files import dump_json

_FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """Formats a line as `time`, `level`, `message` and, for an event of the federation, its own keys."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage().strip("\t "),
            **getattr(record, "event_keys", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return dump_json(line)


def set_log_format(log_format: str) -> None:
    """Let Flower's console print its lines as `text`, as usual, or as `json`."""
    if log_format not in _FORMATS:
        raise CelmError(f"log_format must be 'text' or 'json', not {log_format!r}")
    for handler in FLOWER_LOGGER.handlers:
        if not isinstance(handler, ConsoleHandler):
            continue
        # Flower's handler ignores formatters: its method `format` is replaced for this one handler.
        if log_format == "json":
            vars(handler)["format"] = JsonFormatter().format
        else:
            vars(handler).pop("format", None)
