"""The log of a live federation: a standard logger, unless a framework has one that its users already read."""

from __future__ import annotations

import logging
from typing import Any

_current = logging.getLogger("celm.live")


def use_logger(logger: logging.Logger) -> None:
    """Log with `logger` from now on."""
    global _current
    _current = logger


def log(level: int, message: str, *values: object, **options: Any) -> None:
    """Log a line at a level, as `logging.Logger.log` does."""
    _current.log(level, message, *values, stacklevel=2, **options)
