"""Several methods on one dataset and split, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celm.base.errors import CelmError, nearest
from celm.federation.assembly import resolve
from celm.federation.experiment import Experiment
from celm.federation.presets import with_preset
from celm.objectives import objectives
from celm.rules import rules
from celm.study.grid import Cell, Outcome
from celm.study.measures import ACCURACIES
from celm.study.paper import paper_figure
from celm.study.table import Figure, Table


def parse_method(method: str) -> tuple[str, str]:
    """`rule`, `rule+objective`, or an objective alone, which goes with plain averaging.

    >>> parse_method("celm+plain"), parse_method("celm"), parse_method("plain")
    (('celm', 'plain'), ('celm', 'plain'), ('fedavg', 'plain'))
    """
    rule, plus, objective = method.partition("+")
    if not plus and rule not in rules.names() and rule in objectives.names():
        rule, objective = "fedavg", rule
    if not plus and rule not in rules.names():
        raise CelmError(f"unknown method '{method}'", nearest(method, [*rules.names(), *objectives.names()]))
    return rules.check(rule), objectives.check(objective or "plain")


def compare_cells(
    base: Experiment, methods: Sequence[str], seeds: Sequence[int], out: Path, preset: str | None
) -> dict[tuple[str, int], Cell]:
    """A run for every method and seed. Settings of the rule and objective that `base` names go to those alone."""
    cells: dict[tuple[str, int], Cell] = {}
    for method in methods:
        rule, objective = parse_method(method)
        for seed in seeds:
            tables = base.tables()
            for table, name in (("rule", rule), ("objective", objective)):
                if tables[table]["name"] != name:
                    tables[table] = {"name": name}
            tables["run"] |= {"seed": seed, "workers": 0}
            experiment = resolve(Experiment.parse(with_preset(tables, preset)))
            cells[method, seed] = Cell(
                experiment, out / f"{experiment.method}-seed{seed}", experiment.dataset.name, method
            )
    return cells


def compare_table(outcomes: dict[tuple[str, int], Outcome], title: str) -> Table:
    """Methods by metrics; a metric that the split does not have is left out."""
    methods = list(dict.fromkeys(method for method, _ in outcomes))
    seeds = len({seed for _, seed in outcomes})
    ours: dict[tuple[str, str], Figure] = {}
    paper: dict[tuple[str, str], Figure] = {}
    for method in methods:
        done = [o for (name, _), o in outcomes.items() if name == method]
        for metric in ACCURACIES:
            values = [o.result[metric] for o in done if o.result and o.result[metric] is not None]
            if values:
                ours[method, metric] = Figure.of(values, meant=seeds)
            if (figure := paper_figure(done[0].cell.experiment, metric)) is not None:
                paper[method, metric] = figure
    columns = [metric for metric in ACCURACIES if any(column == metric for _, column in ours)]
    return Table(title, methods, columns, ours, paper)
