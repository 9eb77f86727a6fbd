"""The runs of a study or a comparison: settings, folder and position in the table of each run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celm.base.errors import CelmError, suggest_name
from celm.experiment.config import Experiment
from celm.experiment.differences import file_name
from celm.experiment.presets import with_preset
from celm.federation.build import resolve_defaults
from celm.study.methods import read_methods
from celm.study.scales import Scale, apply_scale, rows_for_scale, seeds_for_scale
from celm.study.spec import Row, StudySpec, parse_method, slug

if TYPE_CHECKING:
    from celm.study.methods import Method

_FILTER_NAMES = ("dataset", "split", "row", "clients", "method", "seed")


@dataclass(frozen=True)
class RunSpec:
    """One planned run: its resolved settings, its folder, and its position in the table."""

    experiment: Experiment
    folder: Path
    row: str
    method: str

    @property
    def rounds(self) -> int:
        return self.experiment.run.rounds or 0

    @property
    def label(self) -> str:
        return f"{self.row}, {self.method}, seed {self.experiment.run.seed}"


GridKey = tuple[str, str, int]
"""The position of a run in a study: row label, method label, seed."""


def plan_runs(study: StudySpec, scale: Scale, out: Path, only: str = "") -> dict[GridKey, RunSpec]:
    """Return the runs of a study that pass the filter `only`, such as `dataset=fashion_mnist split=pls`."""
    specs: dict[GridKey, RunSpec] = {}
    for row, method, seed in _select_runs(study, scale, only):
        try:
            experiment = _build_experiment(study, row, method, seed, scale)
        except CelmError as error:
            location = f"study '{study.name}', row '{row.label}', method '{method}'"
            raise CelmError(f"{location}: {error}") from error
        folder = out / "cells" / "-".join(map(slug, (row.label, method, f"seed{seed}")))
        specs[row.label, method, seed] = RunSpec(experiment, folder, row.label, method)
    if not specs:
        raise CelmError(f"--only: no run of study '{study.name}' matches '{only}'")
    return specs


def _build_experiment(study: StudySpec, row: Row, method: str, seed: int, scale: Scale) -> Experiment:
    declared_method = study.methods_for_row(row)[method]
    rule, objective = parse_method(declared_method.method or method)
    tables = {**row.settings, "rule": {"name": rule}, "objective": {"name": objective}}
    for name, settings in declared_method.settings.items():
        tables[name] = {**tables.get(name, {}), **settings}
    tables = apply_scale(tables, scale)
    tables["run"] = {**tables.get("run", {}), "seed": seed, "workers": 0}
    return resolve_defaults(Experiment.parse(with_preset(tables, "paper"))).experiment


def plan_comparison(
    base: Experiment, methods: Sequence[Method], seeds: Sequence[int], out: Path, preset: str | None
) -> dict[tuple[str, int], RunSpec]:
    """Return a run for each method and seed.

    Settings of the rule or objective of `base` apply only to methods with that rule or objective.
    """
    specs: dict[tuple[str, int], RunSpec] = {}
    for method in read_methods(methods):
        for seed in seeds:
            tables = base.to_dict()
            method.apply(tables)
            tables["run"] |= {"seed": seed, "workers": 0}
            experiment = resolve_defaults(Experiment.parse(with_preset(tables, preset))).experiment
            name = method.label if method.label.count("=") else experiment.method
            folder = out / file_name([name, f"seed{seed}"])
            specs[method.label, seed] = RunSpec(experiment, folder, experiment.dataset.name, method.label)
    return specs


# --- filters ------------------------------------------------------------------------------------------------


def _select_runs(study: StudySpec, scale: Scale, only: str) -> list[tuple[Row, str, int]]:
    """Return row, method and seed of each run that passes `only`. A value that matches no run is an error."""
    runs = [
        (row, method, seed)
        for row in rows_for_scale(study, scale)
        for method in study.methods_for_row(row)
        for seed in seeds_for_scale(study.seeds, scale)
    ]
    values_by_run = [_filter_values(study, *run) for run in runs]
    selected: dict[str, set[str]] = {}
    for name, texts in _parse_filter(only).items():
        valid_values = {value for run_values in values_by_run for value in run_values.get(name, ())}
        slugs = {slug(value) for value in valid_values}
        selected[name] = {slug(value) for text in texts for value in _split_names(text, valid_values)}
        for value in sorted(selected[name] - slugs):
            raise CelmError(
                f"--only: study '{study.name}' has no {name} '{value}'",
                suggest_name(value, slugs) if slugs else None,
            )
    # A coalition has no value for "method", so it passes that filter: the truth needs all coalitions.
    return [
        run
        for run, run_values in zip(runs, values_by_run, strict=True)
        if all(
            values & set(map(slug, run_values[name]))
            for name, values in selected.items()
            if name in run_values
        )
    ]


def _filter_values(study: StudySpec, row: Row, method: str, seed: int) -> dict[str, set[str]]:
    """Return filter name to the values that select a run; empty if the value is unknown."""
    settings = row.settings
    values = {
        "dataset": {settings["dataset"]["name"]},
        "split": {settings["split"]["name"], row.split_label},
        "row": {row.label},
        "clients": set() if row.num_clients is None else {str(row.num_clients)},
        "method": {method},
        "seed": {str(seed)},
    }
    if method not in study.methods:
        del values["method"]
    return values


def _parse_filter(only: str) -> dict[str, list[str]]:
    """Split the value of `--only` into filter name to values.

    >>> _parse_filter("split=pls seed=42,43 method='shared heads'")
    {'split': ['pls'], 'seed': ['42,43'], 'method': ['shared heads']}
    """
    try:
        parts = shlex.split(only)
    except ValueError:
        raise CelmError(f"--only: unclosed quote in '{only}'") from None
    filters: dict[str, list[str]] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if key not in _FILTER_NAMES or not equals:
            raise CelmError(
                f"--only: '{part}' is not a filter",
                f"as in dataset=fashion_mnist split=pls method=fedavg,celm; by {', '.join(_FILTER_NAMES)}",
            )
        filters.setdefault(key, []).append(value)
    return filters


def _split_names(value: str, valid_names: Collection[str]) -> Iterator[str]:
    """Split a comma-separated list. A valid name may contain commas itself.

    >>> list(_split_names("a, b,c", valid_names={"a, b", "c", "d"}))
    ['a, b', 'c']
    """
    parts = value.split(",")
    while parts:
        prefixes = {end: ",".join(parts[:end]) for end in range(len(parts), 0, -1)}
        end = next((end for end, prefix in prefixes.items() if prefix in valid_names), 1)
        yield prefixes[end]
        parts = parts[end:]
