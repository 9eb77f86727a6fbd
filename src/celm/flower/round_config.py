"""The config that clients receive, as a subclass changes it from round to round.

Flower passes one ConfigRecord to `configure_train` in every round, so a subclass may write `config["lr"] *= 0.5`. Here
each attempt at a round gets a copy. The copy of a successful round is kept for the next one and saved, so that retries
and a resumed server follow the same schedule as an uninterrupted run.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord

from celm.base.text import quote as quote_name
from celm.live.logger import log


@dataclass
class RoundConfig:
    given: ConfigRecord
    """As passed to `start`."""
    current: ConfigRecord
    """As the last successful round left it."""

    @classmethod
    def restore(cls, name: str, given: ConfigRecord | None, saved: Mapping[str, Any] | None) -> RoundConfig:
        """Return `given` with the saved changes; `name` is for the log.

        A value that the operator has changed since then is used as given.
        """
        given = ConfigRecord() if given is None else given
        current = _copy(given)
        before, after = (_from_json((saved or {}).get(key, {})) for key in ("given", "current"))
        for key in sorted({*before, *after}):
            if before.get(key) == after.get(key):
                continue
            if given.get(key) != before.get(key):
                log(WARNING, "%s: the new value of %s replaces the saved one", name, quote_name(key))
            elif key in after:
                current[key] = after[key]
            else:
                current.pop(key, None)
        return cls(_copy(given), current)

    def copy_for_attempt(self) -> ConfigRecord:
        return _copy(self.current)

    def to_json(self, current: ConfigRecord) -> dict[str, Any] | None:
        """Return what to save if a round ends with the config `current`; None if nothing was changed."""
        if dict(current) == dict(self.given):
            return None
        return {"given": _to_json(self.given), "current": _to_json(current)}


def _copy(config: ConfigRecord) -> ConfigRecord:
    """Return a copy whose lists can be changed as well."""
    values: dict[str, Any] = {
        name: list(value) if isinstance(value, list) else value for name, value in config.items()
    }
    return ConfigRecord(values)


def _to_json(config: ConfigRecord) -> dict[str, Any]:
    return {name: _encode_value(value) for name, value in config.items()}


def _from_json(values: Mapping[str, Any]) -> ConfigRecord:
    return ConfigRecord({name: _decode_value(value) for name, value in values.items()})


def _encode_value(value: Any) -> Any:
    """Encode what JSON does not have: bytes, and floats that may be infinite.

    >>> [_decode_value(_encode_value(value)) for value in (1, 0.1, True, b"x", "x", [b"x"], float("inf"))]
    [1, 0.1, True, b'x', 'x', [b'x'], inf]
    """
    if isinstance(value, list):
        return [_encode_value(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return {"float": value.hex()} if isinstance(value, float) else value


def _decode_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    return float.fromhex(value["float"]) if "float" in value else base64.b64decode(value["bytes"])
