"""Compare the settings of a study's runs: common settings, and those that differ by row and by method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tomli_w

from celm.report.views import RunView

_IGNORED_SETTINGS = {"run.seed", "split.seed", "run.workers", "run.threads", "run.device"}
"""Settings that do not define another experiment."""
_DATA_TABLES = ("dataset.", "split.")

RunsByMethod = Mapping[str, Sequence[RunView]]
"""Method, with its varying settings, to its runs; one run per seed."""


@dataclass(frozen=True)
class StudySettings:
    """Settings of a study's runs."""

    common: str
    """TOML."""
    by_row: Mapping[str, str]
    """Row to `setting=value, ...`."""
    by_method: Mapping[str, str]
    """Method to `setting=value, ...`."""


def summarise_settings(rows: Mapping[str, RunsByMethod]) -> StudySettings:
    """Split the settings. A varying setting that is constant within every row differs by row, else by method."""
    by_row = {row: [run for runs in methods.values() for run in runs] for row, methods in rows.items()}
    by_method: dict[str, list[RunView]] = {}
    for methods in rows.values():
        for method, runs in methods.items():
            by_method.setdefault(method, []).extend(runs)
    all_runs = [run for runs in by_row.values() for run in runs]
    keys = varying_settings(all_runs)
    varying_within_rows = {key for runs in by_row.values() for key in varying_settings(runs)}
    return StudySettings(
        _common_settings(all_runs, keys),
        _distinguishing_settings(by_row, [key for key in keys if key not in varying_within_rows]),
        _distinguishing_settings(by_method, [key for key in keys if key in varying_within_rows]),
    )


def varying_settings(runs: Iterable[RunView]) -> list[str]:
    """Return the names of the settings that are not equal in all runs, sorted."""
    return _varying_keys([_flatten_settings(run) for run in runs])


def group_by_settings(runs: Sequence[RunView]) -> dict[str, dict[str, list[RunView]]]:
    """Group runs by data, then by method. Settings that vary within a group become part of its name."""
    rows: dict[str, dict[str, list[RunView]]] = {}
    by_data = _group_by_varying(
        (run, f"{run.result.dataset}, {run.result.split}", _select_settings(run, of_data=True))
        for run in runs
    )
    for row, row_runs in by_data.items():
        rows[row] = _group_by_varying(
            (run, _method_name(run), _select_settings(run, of_data=False)) for run in row_runs
        )
    return rows


def _method_name(run: RunView) -> str:
    return run.experiment.method if run.experiment.run.clients is None else "coalition"


def _group_by_varying(runs: Iterable[tuple[RunView, str, Mapping[str, str]]]) -> dict[str, list[RunView]]:
    """Group runs by name and by the settings that vary among runs of that name."""
    runs = list(runs)
    settings_by_name: dict[str, list[Mapping[str, str]]] = {}
    for _, name, settings in runs:
        settings_by_name.setdefault(name, []).append(settings)
    keys = {name: _varying_keys(rows) for name, rows in settings_by_name.items()}
    groups: dict[str, list[RunView]] = {}
    for run, name, settings in runs:
        distinguishing = [f"{key}={settings.get(key, 'default')}" for key in keys[name]]
        groups.setdefault(", ".join([name, *distinguishing]), []).append(run)
    return groups


def _varying_keys(rows: Sequence[Mapping[str, str]]) -> list[str]:
    keys = sorted({key for row in rows for key in row})
    return [key for key in keys if len({row.get(key) for row in rows}) > 1]


def _select_settings(run: RunView, of_data: bool) -> dict[str, str]:
    """Return the settings of dataset and split, or all others."""
    return {
        key: value for key, value in _flatten_settings(run).items() if key.startswith(_DATA_TABLES) == of_data
    }


def _flatten_settings(run: RunView) -> dict[str, str]:
    """Return settings as text by their full names, such as `split.clients`."""
    return {
        f"{table}.{key}": json.dumps(value, ensure_ascii=False).strip('"')
        for table, values in run.experiment.to_dict().items()
        for key, value in (values.items() if isinstance(values, dict) else [("names", values)])
        if f"{table}.{key}" not in _IGNORED_SETTINGS
    }


def _common_settings(runs: Sequence[RunView], varying: Sequence[str]) -> str:
    """Return the settings of the first run as TOML, without the varying ones."""
    if not runs:
        return ""
    omitted = {*varying, *_IGNORED_SETTINGS}
    tables = {
        name: {key: value for key, value in table.items() if f"{name}.{key}" not in omitted}
        if isinstance(table, dict)
        else table
        for name, table in runs[0].experiment.to_dict().items()
        if f"{name}.names" not in omitted
    }
    return tomli_w.dumps({name: table for name, table in tables.items() if table})


def _distinguishing_settings(groups: Mapping[str, Sequence[RunView]], keys: Sequence[str]) -> dict[str, str]:
    """Return group name to `setting=value, ...`, without unset settings; empty if no setting differs."""
    texts = {}
    for name, runs in groups.items() if keys else ():
        settings = [_flatten_settings(run) for run in runs]
        values = {key: dict.fromkeys(row[key] for row in settings if key in row) for key in keys}
        texts[name] = ", ".join(
            f"{key}={' or '.join(distinct)}" for key, distinct in values.items() if distinct
        )
    return texts
