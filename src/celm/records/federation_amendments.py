"""Amendments: changes of the settings of a federation, written into the line of the first round that has them.

settings.json keeps the settings of the first round. The settings of a later round are those, with the amendments of all
lines up to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from celm.base.errors import CelmError
from celm.records.hash_chain import json_digest
from celm.records.schema import Schema

KEY_AMENDMENT = "key of "
"""The prefix of the amendment of a client's key, which is not a setting."""


class Amendment(Schema):
    """A setting that was changed while the federation was stopped."""

    setting: str
    before: Any
    after: Any
    by: str
    """The account that ran the server."""


def apply_amendments(settings: Mapping[str, Any], amendments: Iterable[Amendment]) -> dict[str, Any]:
    """Return the amended settings.

    >>> change = Amendment(setting="rule.beta", before=0.5, after=0.25, by="me")
    >>> apply_amendments({"rule": {"name": "celm", "beta": 0.5}, "rounds": 3}, [change])
    {'rule': {'name': 'celm', 'beta': 0.25}, 'rounds': 3}
    """
    amended = dict(settings)
    for amendment in amendments:
        table, dot, key = amendment.setting.partition(".")
        if amendment.setting.startswith(KEY_AMENDMENT):
            continue
        if dot and isinstance(amended.get(table), dict):
            amended[table] = {**amended[table], key: amendment.after}
        else:
            amended[amendment.setting] = amendment.after
    return amended


def amended_settings(
    settings: Mapping[str, Any], records: Iterable[Mapping[str, Any]], path: Path
) -> dict[str, Any]:
    """Return the settings after all `records`. `settings` was read from `path`.

    Raise CelmError unless each line has the digest of the settings that it amends or continues.
    """
    current = dict(settings)
    digest = _settings_digest(current, path)
    for number, record in enumerate(records, start=1):
        amendments = _parse_amendments(record, number)
        if amendments:
            current = apply_amendments(current, amendments)
            digest = _settings_digest(current, path)
        if record.get("settings") != digest:
            raise CelmError(f"{path} was changed: its digest is not the one in rounds.jsonl (line {number})")
    return current


def _parse_amendments(record: Mapping[str, Any], number: int) -> list[Amendment]:
    try:
        return [Amendment.model_validate(item) for item in record.get("amendments", [])]
    except (ValidationError, TypeError) as error:
        raise CelmError(f"rounds.jsonl is damaged: line {number}: amendments") from error


def _settings_digest(settings: Mapping[str, Any], path: Path) -> str:
    try:
        return json_digest(settings)
    except ValueError as error:  # NaN, or an unpaired surrogate
        raise CelmError(f"{path} is damaged: it has a value that is not JSON") from error
