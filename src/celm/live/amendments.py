"""Settings of a federation that is continued: what may be amended, what stays, and what is refused.

fixed       rule.name, seed, classes, input_shape, head and the model: with others, the saved state means nothing,
            and with another seed the server could draw other clients until it likes the result
stays       the warm-up: members agreed on it at the start. Other values are ignored, with a warning. The rule's
            schedule keeps the number of rounds of the start, so that more rounds do not reopen frozen weights
amended     everything else, in the record (celm.records.federation_amendments)

A setting that the folder does not have was added by a newer celm. It counts as its default, or None.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.text import printable
from celm.rules.rule import AnyRule

_FIXED = ("rule.name", "seed", "classes", "input_shape", "head", "model", "adapters", "frozen")
_WARMUP = ("warmup", "warmup_fraction", "warmup_tolerance", "min_warmup")
_MAX_SHOWN = 3
_MAX_VALUE_LENGTH = 60


@dataclass(frozen=True)
class Difference:
    """A setting with two values."""

    setting: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.setting} is {_show(self.before)} there, {_show(self.after)} here"


def keep_warmup(rule: AnyRule, agreed: Mapping[str, Any]) -> tuple[AnyRule, list[Difference]]:
    """Return the rule with the warm-up settings of `agreed`, its table in the folder, and what differed."""
    defaults = field_defaults(rule)
    names = [name for name in _WARMUP if name in defaults]
    kept = {name: agreed.get(name, defaults[name]) for name in names}
    ignored = [
        Difference(f"rule.{name}", kept[name], getattr(rule, name))
        for name in names
        if kept[name] != getattr(rule, name)
    ]
    return replace(rule, **kept), ignored


def compare_settings(
    agreed: Mapping[str, Any],
    given: Mapping[str, Any],
    defaults: Mapping[str, Mapping[str, Any]],
    folder: Path,
) -> list[Difference]:
    """Return the amendments that turn `agreed` into `given`. Raise CelmError if a fixed setting differs."""
    differences = list(_differences(agreed, given, defaults))
    fixed = [difference for difference in differences if _is_fixed(difference.setting)]
    if fixed:
        shown = "; ".join(map(str, fixed[:_MAX_SHOWN]))
        more = f"; and {len(fixed) - _MAX_SHOWN} more" if len(fixed) > _MAX_SHOWN else ""
        raise CelmError(
            f"{folder}: the federation there has other settings: {shown}{more}",
            "these cannot be amended: use the values of the folder, or choose another folder",
        )
    return differences


def _differences(
    agreed: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    for key in {**agreed, **given}:
        before, after = agreed.get(key), given.get(key)
        if before == after or key == "schema_version":
            continue
        if not (isinstance(before, dict) and isinstance(after, dict)):
            yield Difference(key, before, after)
        elif before.get("name") != after.get("name"):
            is_fixed = _is_fixed(f"{key}.name")
            yield (
                Difference(f"{key}.name", before.get("name"), after.get("name"))
                if is_fixed
                else Difference(key, before, after)
            )
        else:
            for name in {**before, **after}:
                old = before.get(name, defaults.get(key, {}).get(name))
                if old != after.get(name):
                    yield Difference(f"{key}.{name}", old, after.get(name))


def field_defaults(part: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass; None for a field without one."""
    return {
        field.name: field.default
        if field.default is not MISSING
        else field.default_factory()
        if field.default_factory is not MISSING
        else None
        for field in fields(part)
    }


def account() -> str:
    """Return the account that runs the server."""
    try:
        return printable(getpass.getuser(), replacement="?")
    except (OSError, KeyError, ImportError):  # an account without a name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _is_fixed(setting: str) -> bool:
    return setting in _FIXED or setting.partition(".")[0] in _FIXED


def _show(value: Any) -> str:
    text = dump_json(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."
