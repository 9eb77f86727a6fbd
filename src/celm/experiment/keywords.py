"""Keywords of `celm.Experiment` that stand for a setting in a table: `rounds=20` for `run={"rounds": 20}`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from celm.base.errors import CelmError
from celm.data.registry import datasets
from celm.experiment.dataset_names import parse_dataset
from celm.experiment.presets import with_preset

KEYWORDS = {
    "clients": ("split", "clients"),
    "rounds": ("run", "rounds"),
    "seed": ("run", "seed"),
    "participation": ("run", "participation"),
    "evidence": ("rule", "evidence"),
    "idle_check": ("rule", "idle_check"),
    "workers": ("run", "workers"),
    "device": ("run", "device"),
}
"""Keyword, which is also an option of the command line, to table and key of its setting."""
_DEFAULT_NAMES = {"rule": "celm"}


def expand_keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of an experiment, with keywords in their tables, and with the settings of `preset`.

    >>> expand_keywords({"rule": "celm", "rounds": 20})
    {'rule': 'celm', 'run': {'rounds': 20}}
    """
    tables = dict(values)
    for keyword, (table, key) in KEYWORDS.items():
        if keyword not in tables:
            continue
        value = tables.pop(keyword)
        if value is None:
            continue
        settings = _as_table(tables.get(table), table)
        if key in settings:
            raise CelmError(
                f"setting '{table}.{key}' is given twice, as '{keyword}' and in '{table}'", "give it once"
            )
        tables[table] = {**settings, key: value}
    if "dataset" in tables:
        tables["dataset"] = _find_folder(tables["dataset"])
    if isinstance(tables.get("observe"), str):
        tables["observe"] = [name.strip() for name in tables["observe"].split(",")]
    preset = tables.pop("preset", None)
    if preset is not None and not isinstance(preset, str):
        raise CelmError(f"preset must be a name: {preset!r}", "as in preset='trust'")
    return with_preset(tables, preset)


def _as_table(value: Any, table: str) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return dict(value)
    if value is None:
        return {"name": _DEFAULT_NAMES[table]} if table in _DEFAULT_NAMES else {}
    return {"name": value}


def _find_folder(dataset: Any) -> Any:
    """Return the settings of a dataset that is a path or a name of the hub, else `dataset`."""
    if not isinstance(dataset, str | os.PathLike):
        return dataset
    text = os.fspath(dataset)
    if isinstance(dataset, str):
        return dataset if text in datasets.names() else parse_dataset(text)
    return parse_dataset(text if "/" in text else f"./{text}")
