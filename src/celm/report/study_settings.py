"""What the runs of a study have in common, and what differs by row and by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tomli_w

from celm.report.reading import Told
from celm.report.study_runs import IRRELEVANT, Methods, flat, varying


@dataclass(frozen=True)
class Settings:
    common: str
    """As TOML."""
    by_row: Mapping[str, str]
    by_method: Mapping[str, str]


def study_settings(rows: Mapping[str, Methods]) -> Settings:
    """A setting that is the same within every row differs by row; all others that vary, by method."""
    by_row = {row: [told for runs in methods.values() for told in runs] for row, methods in rows.items()}
    by_method: dict[str, list[Told]] = {}
    for methods in rows.values():
        for method, runs in methods.items():
            by_method.setdefault(method, []).extend(runs)
    every = [told for runs in by_row.values() for told in runs]
    keys = varying([flat(told) for told in every])
    within = {key for runs in by_row.values() for key in varying([flat(told) for told in runs])}
    return Settings(
        common(every, keys),
        told_apart(by_row, [key for key in keys if key not in within]),
        told_apart(by_method, [key for key in keys if key in within]),
    )


def common(runs: Sequence[Told], keys: Sequence[str]) -> str:
    if not runs:
        return ""
    unlike = {*keys, *IRRELEVANT}
    tables = {
        name: {key: value for key, value in table.items() if f"{name}.{key}" not in unlike}
        if isinstance(table, dict)
        else table
        for name, table in runs[0].experiment.tables().items()
        if f"{name}.names" not in unlike
    }
    return tomli_w.dumps({name: table for name, table in tables.items() if table})


def told_apart(groups: Mapping[str, Sequence[Told]], keys: Sequence[str]) -> dict[str, str]:
    """Name to `setting=value, ...`, without settings that are not set; empty where nothing differs."""
    told = {}
    for name, runs in groups.items() if keys else ():
        settings = [flat(run) for run in runs]
        values = {key: dict.fromkeys(row[key] for row in settings if key in row) for key in keys}
        told[name] = ", ".join(f"{key}={' or '.join(found)}" for key, found in values.items() if found)
    return told
