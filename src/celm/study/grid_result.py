"""A comparison or a study, as an object: its runs so far, its table and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError, suggest_name
from celm.records.run_files import RunFiles
from celm.records.study_records import TableFile, read_study_manifest, read_table
from celm.report.contribution_views import html_table
from celm.report.data_frames import make_frame
from celm.report.formatting import format_text, pluralise
from celm.report.study_settings import RunsByMethod, varying_settings
from celm.report.study_view import find_runs, group_runs
from celm.report.views import RunView
from celm.runs.run import Run
from celm.study.paired import paired_difference
from celm.study.run_metrics import ACCURACY_METRICS, COST_METRICS, METRICS, compute_metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_RESULTS = [name for name in METRICS if name not in COST_METRICS]
_METHOD_SETTINGS = ("rule.", "objective.", "run.local_heads", "run.validation", "observe.")
"""Settings that belong to a method, so they are no columns of their own."""


class GridResult:
    """Runs of several methods and seeds, as far as they got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_study_manifest(folder / "study.json")
        table_path = folder / "table.json"
        self.table: TableFile | None = read_table(table_path) if table_path.is_file() else None
        """Mean and standard deviation of each cell; None until the first table is written."""
        self._runs = find_runs(folder, self.manifest)
        self._rows = group_runs(self._runs.finished, self.manifest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._headline()})"

    @property
    def title(self) -> str:
        title = self.manifest.title if self.manifest else self.table.title if self.table else self.folder.name
        return format_text(title)

    @property
    def rows(self) -> list[str]:
        """The rows with at least one finished run."""
        return list(self._rows)

    @property
    def methods(self) -> list[str]:
        """The methods with at least one finished run."""
        return list(dict.fromkeys(method for methods in self._rows.values() for method in methods))

    @property
    def failed(self) -> Mapping[str, str]:
        """Run to its error."""
        return self._runs.failed

    @property
    def unfinished(self) -> list[str]:
        """Folders of runs that have started but not finished."""
        return [*self._runs.unfinished]

    def run(self, method: str, seed: int, row: str | None = None) -> Run:
        """Return one finished run."""
        methods = self._select(row)
        runs = [run for name, run in _flatten(methods, method) if run.result.seed == seed]
        if not runs:
            seeds = sorted({run.result.seed for _, run in _flatten(methods, method)})
            hint = f"seeds: {seeds}" if seeds else suggest_name(method, self.methods)
            raise CelmError(f"{self.folder} has no finished run of '{method}' with seed {seed}", hint)
        return Run.read(RunFiles.open(runs[0].path))

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per cell and seed: accuracies, free-rider detection, fidelity to the true distribution.

        Settings of data, model and training that differ between runs are columns, too. A run that is not finished is
        absent; see `unfinished` and `failed`.
        """
        finished = [run for methods in self._rows.values() for runs in methods.values() for run in runs]
        settings = [name for name in varying_settings(finished) if not name.startswith(_METHOD_SETTINGS)]
        rows = []
        for row, methods in self._rows.items():
            for method, runs in methods.items():
                for view in runs:
                    run = Run.read(RunFiles.open(view.path))
                    tables = view.experiment.to_dict()
                    rows.append(
                        {
                            "row": row,
                            "method": method,
                            "seed": view.result.seed,
                            **{name: _setting(tables, name) for name in settings},
                            **{name: compute_metric(name, run) for name in _RESULTS},
                            "rounds": view.result.rounds,
                            "seconds": view.result.seconds,
                        }
                    )
        columns = ["row", "method", "seed", *settings, *_RESULTS, "rounds", "seconds"]
        frame = make_frame(rows, columns)
        return frame.astype(dict.fromkeys([*_RESULTS, "seconds"], "float64"))

    def plot_comparison(self, metric: str = "accuracy", row: str | None = None) -> Axes:
        """Draw the final accuracy of each method: a small dot for each seed, a large one for the mean."""
        from celm.report.bar_figures import method_accuracy_figure

        if metric not in ACCURACY_METRICS:
            raise CelmError(f"cannot draw '{metric}'", suggest_name(metric, ACCURACY_METRICS))
        values: dict[str, list[float]] = {}
        for name, run in _flatten(self._select(row)):
            if (value := getattr(run.result, metric)) is not None:
                values.setdefault(name, []).append(value)
        return method_accuracy_figure(values)

    def plot_accuracy(self, row: str | None = None, title: str | None = None) -> Axes:
        """Draw the accuracy of each method over the rounds: mean and range over the seeds."""
        from celm.report.line_figures import accuracy_figure

        curves: dict[str, dict[int, Sequence[Mapping[str, Any]]]] = {}
        for name, run in _flatten(self._select(row)):
            by_seed = curves.setdefault(name, {})
            by_seed[len(by_seed)] = run.records
        return accuracy_figure(curves, title=title)

    def plot_weights(self, row: str | None = None) -> Axes:
        """Draw the final weight of each client by method, as means over the seeds."""
        from celm.report.bar_figures import method_weights_figure

        weights: dict[str, list[Mapping[str, float]]] = {}
        for name, run in _flatten(self._select(row)):
            weights.setdefault(name, []).append(run.result.weights)
        clients = list(dict.fromkeys(client for runs in weights.values() for run in runs for client in run))
        means = {
            name: [
                sum(known) / len(known) if (known := [run[client] for run in runs if client in run]) else None
                for client in clients
            ]
            for name, runs in weights.items()
        }
        return method_weights_figure(means, clients)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report as one HTML file, by default `report.html` in the folder, and return its path."""
        from celm.report.build import write_report

        return write_report(self.folder, None if path is None else Path(path))

    def _select(self, row: str | None) -> RunsByMethod:
        """Return the runs of a row, or of all rows; with several rows, their names become part of the method's."""
        if row is not None:
            if row not in self._rows:
                raise CelmError(
                    f"{self.folder} has no finished run in row '{row}'", suggest_name(row, self._rows)
                )
            return self._rows[row]
        if len(self._rows) == 1:
            return next(iter(self._rows.values()))
        return {f"{name}, {m}": runs for name, methods in self._rows.items() for m, runs in methods.items()}

    def _headline(self) -> str:
        runs = self._runs
        total = len(self.manifest.cells) if self.manifest else len(runs.finished) + len(runs.unfinished)
        parts = [f"{len(runs.finished)} of {pluralise(total, 'run')}"]
        parts += [f"{len(runs.failed)} failed"] if runs.failed else []
        return f"{self.title}: {', '.join(parts)}"

    def _repr_html_(self) -> str:
        if self.table is None:
            rows = [(name, str(len(runs))) for name, runs in self._select(None).items()] if self._rows else []
            return html_table(self._headline(), ("method", "finished runs"), rows)
        cells = {(cell.row, cell.column): cell for cell in self.table.cells}
        columns = list(dict.fromkeys(column for _, column in cells))
        table_rows = [
            [row, *(_format_cell(cells.get((row, column))) for column in columns)]
            for row in dict.fromkeys(row for row, _ in cells)
        ]
        return html_table(self._headline(), ["", *columns], table_rows)


class Comparison(GridResult):
    """The result of `celm compare`: methods over seeds, and over a grid of settings."""

    def contributions(self) -> pd.DataFrame:
        """Return the final weight of each client: one row per cell, seed and client."""
        rows = [
            {"row": row, "method": method, "seed": run.result.seed, "client": client, "weight": weight}
            for row, methods in self._rows.items()
            for method, runs in methods.items()
            for run in runs
            for client, weight in run.result.weights.items()
        ]
        return make_frame(rows, ["row", "method", "seed", "client", "weight"])

    def differences(self) -> pd.DataFrame:
        """Return paired differences between methods: mean over the common seeds, standard error, number of seeds."""
        names = ["row", "method", "minus", "metric", "difference", "standard_error", "seeds"]
        rows = []
        for row, methods in self._rows.items():
            for metric in ACCURACY_METRICS:
                values = {
                    method: {
                        run.result.seed: value
                        for run in runs
                        if (value := getattr(run.result, metric)) is not None
                    }
                    for method, runs in methods.items()
                }
                for baseline, method in combinations(values, 2):
                    if difference := paired_difference(values[method], values[baseline]):
                        rows.append(
                            dict(zip(names, (row, method, baseline, metric, *difference), strict=True))
                        )
        return make_frame(rows, names)

    def save_figures(self) -> list[Path]:
        """Write accuracy, curves and weights as SVG and PDF into the folder; several rows have figures of their own."""
        from celm.report.style import save_figure

        paths = []
        for number, row in enumerate(self._rows, 1):
            suffix = f"-{number}" if len(self._rows) > 1 else ""
            for name, draw in (
                ("accuracy", partial(self.plot_comparison, "accuracy")),
                ("curves", self.plot_accuracy),
                ("weights", self.plot_weights),
            ):
                axes = draw(row)
                for file_format in ("svg", "pdf"):
                    paths.append(self.folder / f"{name}{suffix}.{file_format}")
                    save_figure(axes, paths[-1])
        return paths


class Study(GridResult):
    """The result of `celm study`: runs that fill a table, with the paper's values beside ours."""


def _flatten(methods: RunsByMethod, method: str | None = None) -> list[tuple[str, RunView]]:
    return [(name, run) for name, runs in methods.items() if method in (None, name) for run in runs]


def _setting(tables: Mapping[str, Any], name: str) -> Any:
    table, _, key = name.partition(".")
    values = tables.get(table)
    return values.get(key) if isinstance(values, Mapping) else None


def _format_cell(cell: Any) -> str:
    if cell is None or cell.mean is None:
        return "–"
    spread = "" if cell.std is None else f" ± {cell.format_value(cell.std)}"
    return f"{cell.format_value(cell.mean)}{spread}{'' if cell.count == cell.meant else '†'}"
