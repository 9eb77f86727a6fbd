"""The figures of one row of a study: accuracy, detection rates, probe settings, estimated distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from celm.base.client_order import natural_sorted
from celm.metrics.free_riders import THRESHOLDS, threshold_curves
from celm.report.bar_figures import method_accuracy_figure, method_weights_figure, per_class_figure
from celm.report.fidelity_panels import fidelity_figure
from celm.report.formatting import format_name, format_percent
from celm.report.heatmap_figures import sensitivity_figure
from celm.report.line_figures import accuracy_figure, threshold_figure
from celm.report.many_clients import MAX_LISTED
from celm.report.study_methods import MethodTable, mean_weights, method_table
from celm.report.study_settings import RunsByMethod, varying_settings
from celm.report.svg import inline_svg

_PROBE_GRID = ["probe.lr", "probe.steps"]
_PANEL_FIGURES = ("final", "curves", "per_class", "weights", "grid", "fpr", "tpr", "fidelity")
_MAX_DOT_METHODS = 8
"""Methods in the figure of accuracy by class."""
_MAX_LABEL_METHODS = 12
"""Methods in the text alternative of a figure."""


@dataclass(frozen=True)
class Panel:
    """The runs of one row and their figures."""

    name: str
    anchor: str
    runs: RunsByMethod
    figures: Mapping[str, Markup | None]
    methods: MethodTable

    @property
    def has_several_seeds(self) -> bool:
        """Return whether a method has more than one seed."""
        return any(len(runs) > 1 for runs in self.runs.values())


def make_panel(number: int, name: str, runs: RunsByMethod, shows_distances: bool) -> Panel:
    """Draw the figures of a row. `shows_distances` adds the true beside the estimated distribution.

    A grid of probe settings has no such figure: which setting's evidence to draw would be arbitrary.
    """
    methods = without_coalitions(runs)
    svgs: dict[str, Markup] = {}
    accuracy = _accuracy_by_probe_settings(methods)
    if accuracy is not None:
        ends = " to ".join(
            f"{format_percent(accuracy[setting], 2)} ({setting[0]} steps of {setting[1]:g})"
            for setting in (min(accuracy, key=accuracy.__getitem__), max(accuracy, key=accuracy.__getitem__))
        )
        svgs["grid"] = inline_svg(
            sensitivity_figure(accuracy),
            f"grid{number}",
            f"Heatmap of accuracy by the probe's steps and learning rate, from {ends}.",
        )
    else:
        svgs |= _accuracy_figures(number, name, methods)
        svgs |= _weight_figure(number, methods)
        if shows_distances and (fidelity_svg := _fidelity_svg(number, methods)):
            svgs["fidelity"] = fidelity_svg
    svgs |= _rate_figures(number, methods)
    return Panel(name, f"panel-{number}", runs, dict.fromkeys(_PANEL_FIGURES) | svgs, method_table(methods))


def without_coalitions(methods: RunsByMethod) -> RunsByMethod:
    """Drop runs of coalitions, unless there are no others. They serve as ground truth and would hide the methods."""
    complete_runs = {
        name: [run for run in runs if run.experiment.run.clients is None] for name, runs in methods.items()
    }
    return {name: runs for name, runs in complete_runs.items() if runs} or methods


def _accuracy_by_probe_settings(methods: RunsByMethod) -> dict[tuple[int, float], float] | None:
    """Return mean accuracy by (steps, rate) if the runs are a full grid of these and nothing else varies."""
    all_runs = [run for runs in methods.values() for run in runs]
    if varying_settings(all_runs) != _PROBE_GRID:
        return None
    values: dict[tuple[int, float], list[float]] = {}
    for run in all_runs:
        probe = run.experiment.probe
        values.setdefault((probe.steps, probe.lr), []).append(run.result.accuracy)
    is_full_grid = len(values) == len({s for s, _ in values}) * len({r for _, r in values})
    return {key: sum(row) / len(row) for key, row in values.items()} if is_full_grid else None


def _accuracy_figures(number: int, name: str, methods: RunsByMethod) -> dict[str, Markup]:
    svgs = {}
    if len(methods) > 1:
        svgs["final"] = inline_svg(
            method_accuracy_figure({m: [run.result.accuracy for run in runs] for m, runs in methods.items()}),
            f"final{number}",
            f"Accuracy at the end by method, one dot per run. Means: {_describe_final(methods)}.",
        )
    curves = {method: dict(enumerate(run.records for run in runs)) for method, runs in methods.items()}
    if any(
        r["accuracy"] is not None for runs in curves.values() for records in runs.values() for r in records
    ):
        svgs["curves"] = inline_svg(
            accuracy_figure(curves),
            f"curves{number}",
            f"Accuracy over the rounds. At the end: {_describe_final(methods)}.",
        )
    classes = {tuple(run.result.classes) for runs in methods.values() for run in runs}
    if len(methods) <= _MAX_DOT_METHODS and len(classes) == 1:
        means = _mean_per_class(methods)
        first = next(run.result for runs in methods.values() for run in runs)
        svgs["per_class"] = inline_svg(
            per_class_figure(means, first.classes, first.rare_classes),
            f"classes{number}",
            f"Accuracy on each class, one dot per method, for {name}. "
            f"Lowest: {_describe_lowest(means, first.classes)}.",
        )
    return svgs


def _describe_final(methods: RunsByMethod) -> str:
    return "; ".join(
        f"{format_name(method)} {format_percent(float(np.mean([run.result.accuracy for run in runs])))}"
        for method, runs in list(methods.items())[:_MAX_LABEL_METHODS]
    )


def _weight_figure(number: int, methods: RunsByMethod) -> dict[str, Markup]:
    """Draw the weights by client and method, unless there are too many of them."""
    weights = mean_weights(methods)
    clients = natural_sorted({client for row in weights.values() for client in row})
    if not 1 < len(methods) <= _MAX_DOT_METHODS or len(clients) > MAX_LISTED:
        return {}
    rows = {method: [row.get(client) for client in clients] for method, row in weights.items()}
    heaviest = "; ".join(
        f"{format_name(method)} {format_name(top, 24)} with {format_percent(row[top])}"
        for method, row in weights.items()
        for top in [max(row, key=row.__getitem__)]
    )
    label = f"Final weight of each client, one dot per method. Heaviest: {heaviest}."
    return {"weights": inline_svg(method_weights_figure(rows, clients), f"weights{number}", label)}


def _mean_per_class(methods: RunsByMethod) -> dict[str, list[float | None]]:
    """Return the accuracy on each class, averaged over seeds."""
    means: dict[str, list[float | None]] = {}
    for method, runs in methods.items():
        rows = [run.result.per_class for run in runs]
        columns = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
        means[method] = [sum(column) / len(column) if column else None for column in columns]
    return means


def _describe_lowest(means: Mapping[str, Sequence[float | None]], classes: Sequence[str]) -> str:
    """Name the class with the lowest accuracy of each method."""
    parts = []
    for method, row in means.items():
        tested = [(accuracy, k) for k, accuracy in enumerate(row) if accuracy is not None]
        if tested:
            accuracy, k = min(tested)
            parts.append(f"{format_name(method)} {format_percent(accuracy)} on {format_name(classes[k], 24)}")
    return "; ".join(parts)


def _rate_figures(number: int, methods: RunsByMethod) -> dict[str, Markup]:
    """Draw the rates of flagged honest clients and of flagged free-riders, for runs with free-riders."""
    rates: dict[str, dict[str, list[float]]] = {"fpr": {}, "tpr": {}}
    for method, runs in methods.items():
        curve_pairs = [
            threshold_curves(
                [record.client_weights for record in run.rounds if record.client_weights],
                run.result.free_riders,
            )
            for run in runs
            if run.result.free_riders
        ]
        for position, rate in enumerate(rates.values()):
            if curves := [curve for pair in curve_pairs if (curve := pair[position]) is not None]:
                rate[method] = np.mean(curves, axis=0).tolist()
    descriptions = {
        "fpr": ("false-positive rate", "Fraction of honest clients that are flagged"),
        "tpr": ("true-positive rate", "Fraction of free-riders that are flagged"),
    }
    return {
        name: inline_svg(
            threshold_figure(THRESHOLDS, rate, y_label=descriptions[name][0]),
            f"{name}{number}",
            f"{descriptions[name][1]}, by threshold on the z-score, one line per method. "
            f"Mean over thresholds: {_describe_means(rate)}.",
        )
        for name, rate in rates.items()
        if rate
    }


def _describe_means(curves: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(
        f"{format_name(method)} {np.mean(curve):.2f}"
        for method, curve in list(curves.items())[:_MAX_LABEL_METHODS]
    )


def _fidelity_svg(number: int, methods: RunsByMethod) -> Markup | None:
    """Draw the true beside the estimated distribution of the first run with evidence."""
    for run in (run for runs in methods.values() for run in runs):
        result = run.result
        evidence = result.evidence or {}
        if any(map(sum, evidence.values())) and any(map(sum, result.counts.values())):
            return inline_svg(
                fidelity_figure(result.counts, evidence, result.classes),
                f"fidelity{number}",
                f"True and estimated distribution of samples, with both marginals, seed {result.seed}.",
            )
    return None
