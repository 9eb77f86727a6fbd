"""`celm.compare`: methods over seeds, and over a grid of settings. The command line calls the same functions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError
from celm.experiment.config import Experiment
from celm.experiment.differences import (
    as_words,
    command_arguments,
    data_parts,
    distinguishing_parts,
    file_name,
)
from celm.experiment.objects import given_objects, warn_unsaved
from celm.experiment.overrides import parse_toml_value, set_value, split_setting
from celm.report.formatting import pluralise
from celm.study.grid_result import Comparison
from celm.study.local_pool import InThisProcess, ProcessPool
from celm.study.methods import read_methods
from celm.study.paired import PairedDifference, paired_differences, save_differences
from celm.study.plan import GridKey, RunSpec, plan_comparison
from celm.study.results import RunOutcome, existing_outcome
from celm.study.scheduler import ProgressCallback, RunPool, run_all
from celm.study.study_folder import write_comparison_manifest
from celm.study.study_tables import build_compare_table, build_contribution_table, build_grid_table
from celm.study.table import ResultTable, save_table

if TYPE_CHECKING:
    from celm.study.methods import Method

Grid = Mapping[str, Sequence[Any]]
"""Full name of a setting to its values."""


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison, and where they go."""

    specs: Mapping[GridKey, RunSpec]
    """(grid point, method, seed) to run; the point is empty without a grid."""
    folder: Path
    title: str
    command: Sequence[str]


@dataclass(frozen=True)
class ComparisonTables:
    """The tables of a comparison."""

    accuracy: ResultTable
    contributions: ResultTable
    """Weights of clients, and fidelity to the true distribution."""
    differences: Sequence[PairedDifference]


def compare(
    methods: Sequence[Method],
    seeds: Sequence[int] = (42, 43, 44),
    *,
    grid: Grid | None = None,
    preset: str | None = None,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    watch: ProgressCallback | None = None,
    **experiment: Any,
) -> Comparison:
    """Compare methods over seeds, and return the result as an object.

    If it was stopped or killed, the same call runs what is missing.

    Args:
        methods: rules, `rule+objective`, or objects such as `MyRule(power=2)` and `(MyRule(), "fedrs")`.
        seeds: seeds of all methods.
        grid: full name of a setting to values, such as `{"split.alpha": [0.01, 0.1]}`. Every combination is compared.
        preset: named settings, `paper` or `trust`.
        out: the folder; by default below `compare/`, named after what differs from the defaults.
        workers: number of runs at a time; by default one per core.
        watch: called with the progress, at short intervals.
        **experiment: settings of all runs, as of `celm.Experiment`.
    """
    if "seed" in experiment:
        raise CelmError("celm.compare has no argument 'seed'", "give seeds=[...]")
    base = Experiment(**experiment)
    plan = make_plan(base, methods, seeds, grid, preset, None if out is None else Path(out))
    experiments = [spec.experiment for spec in plan.specs.values()]
    warn_unsaved(
        experiments, lambda tables: "to resume this comparison, call celm.compare with the same objects"
    )
    has_objects = any(map(given_objects, experiments))
    _, outcomes = run_plan(plan, InThisProcess if has_objects else lambda: ProcessPool(workers), watch)
    raise_failures(outcomes)
    return Comparison(plan.folder)


def make_plan(
    base: Experiment,
    methods: Sequence[Method],
    seeds: Sequence[int],
    grid: Grid | None = None,
    preset: str | None = None,
    out: Path | None = None,
    command: Sequence[str] | None = None,
) -> ComparisonPlan:
    """Plan a comparison. `command` repeats it; by default it is made from the settings."""
    _check_lists(methods, seeds)
    points, chosen = _grid_points(grid or {}), read_methods(methods)
    name = [*data_parts(base), *distinguishing_parts(base), *([preset] if preset else [])]
    name += sorted({digest[:6] for method in chosen for digest in method.digests})
    name += ["grid-" + "-".join(setting.rpartition(".")[2] for setting in grid)] if grid else []
    folder = out or Path("compare") / file_name(name)
    specs: dict[GridKey, RunSpec] = {}
    for point, values in points.items():
        experiment = _with_values(base, values)
        for (method, seed), spec in plan_comparison(experiment, methods, seeds, folder, preset).items():
            if point:
                spec = replace(
                    spec, folder=folder / file_name([*_point_parts(values), spec.folder.name]), row=point
                )
            specs[point, method, seed] = spec
    first = next(iter(specs.values())).experiment
    dataset, *split = data_parts(base if base.split.name or "split.name" in (grid or {}) else first)
    others = [as_words(part) for part in distinguishing_parts(base) if not part.endswith("-rounds")]
    rounds = pluralise(first.run.rounds or 0, "round")
    title = ", ".join([dataset, *map(as_words, split), *others, rounds, f"seeds {','.join(map(str, seeds))}"])
    repeat = command or _command(base, [method.label for method in chosen], seeds, grid or {}, preset)
    return ComparisonPlan(specs, folder, title, repeat)


def run_plan(
    plan: ComparisonPlan, pool_factory: Callable[[], RunPool], callback: ProgressCallback | None = None
) -> tuple[ComparisonTables, dict[GridKey, RunOutcome]]:
    """Run what is missing, and write tables, manifest, errors and figures."""
    planned = {key: existing_outcome(spec) or RunOutcome(spec, None) for key, spec in plan.specs.items()}
    results = run_all(list(plan.specs.values()), pool_factory, _write_first(plan, planned, callback))
    outcomes = dict(zip(plan.specs, results, strict=True))
    if any(point for point, _, _ in outcomes):
        table = build_grid_table(outcomes, plan.title)
    else:
        table = build_compare_table({key[1:]: outcome for key, outcome in outcomes.items()}, plan.title)
    contributions, differences = build_contribution_table(outcomes, plan.title), paired_differences(outcomes)
    save_table(table, plan.folder)
    save_table(contributions, plan.folder, "contributions")
    save_differences(differences, plan.title, plan.folder)
    write_comparison_manifest(plan.command, plan.title, outcomes, plan.folder)
    if any(outcome.result for outcome in outcomes.values()):
        Comparison(plan.folder).save_figures()
    return ComparisonTables(table, contributions, differences), outcomes


def raise_failures(outcomes: Mapping[GridKey, RunOutcome]) -> None:
    """Raise an error that names the failed runs, if there are any."""
    failed = [
        f"{', '.join(filter(None, (point, method)))} at seed {seed}: {outcome.error}"
        for (point, method, seed), outcome in outcomes.items()
        if outcome.error
    ]
    if failed:
        raise CelmError(f"{len(failed)} of {len(outcomes)} runs failed; {'; '.join(failed)}")


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse `--grid` options.

    >>> parse_grid(["split.alpha=0.01,0.1", "split.name=pls,iid"])
    {'split.alpha': [0.01, 0.1], 'split.name': ['pls', 'iid']}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        setting, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise CelmError(
                f"--grid: '{text}' is not a grid", "write TABLE.KEY=VALUE,VALUE, as in split.alpha=0.01,0.1"
            )
        if setting.strip() in grid:
            raise CelmError(f"--grid: '{setting.strip()}' is there twice", "give all its values at once")
        as_list = parse_toml_value(f"[{values}]")
        parts = (
            as_list if isinstance(as_list, list) else [parse_toml_value(part) for part in values.split(",")]
        )
        grid[setting.strip()] = parts
    return grid


def _write_first(
    plan: ComparisonPlan,
    planned: Mapping[GridKey, RunOutcome],
    callback: ProgressCallback | None,
) -> ProgressCallback:
    """Return a callback that writes the manifest before the first run ends, so that a killed comparison has one."""
    written = False

    def write_and_report(progress: Any) -> None:
        nonlocal written
        if not written:
            write_comparison_manifest(plan.command, plan.title, planned, plan.folder)
            written = True
        if callback:
            callback(progress)

    return write_and_report


def _check_lists(methods: Sequence[Method], seeds: Sequence[int]) -> None:
    for name, values, example in (("methods", methods, "['fedavg', 'celm']"), ("seeds", seeds, "[42, 43]")):
        if isinstance(values, str | int) or not values:
            raise CelmError(f"{name} must be a list: {values!r}", f"as in {example}")
    if len(set(seeds)) < len(seeds):
        raise CelmError(f"seeds must be without duplicates: {list(seeds)}")
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise CelmError(f"seeds must be whole numbers: {seed!r}", "as in [42, 43]")


def _grid_points(grid: Grid) -> dict[str, dict[str, Any]]:
    """Return the label of each grid point to its settings; one empty point without a grid."""
    for setting, values in grid.items():
        split_setting(setting)
        if setting in ("run.seed", "rule.name", "objective.name"):
            raise CelmError(f"grid: '{setting}' is not a setting of a grid", "use `methods` and `seeds`")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise CelmError(
                f"grid: '{setting}' must have a list of values, not {values!r}", "as in [0.01, 0.1]"
            )
    combinations = itertools.product(*grid.values())
    points = [dict(zip(grid, values, strict=True)) for values in combinations]
    labels = [", ".join(f"{setting}={value}" for setting, value in point.items()) for point in points]
    if len(set(labels)) < len(labels):
        raise CelmError("grid: a setting has the same value twice")
    return dict(zip(labels, points, strict=True))


def _point_parts(values: Mapping[str, Any]) -> list[str]:
    return [f"{setting.partition('.')[2]}-{value}" for setting, value in values.items()]


def _with_values(base: Experiment, values: Mapping[str, Any]) -> Experiment:
    tables = base.to_dict()
    for setting, value in values.items():
        set_value(tables, *split_setting(setting), value)
    return Experiment.parse(tables)


def _command(
    base: Experiment, methods: Sequence[str], seeds: Sequence[int], grid: Grid, preset: str | None
) -> list[str]:
    command = ["celm", "compare", "--methods", ",".join(methods), "--seeds", ",".join(map(str, seeds))]
    for setting, values in grid.items():
        command += ["--grid", f"{setting}={','.join(map(str, values))}"]
    command += ["--preset", preset] if preset else []
    return command + command_arguments(base)
