"""Views that the results of a run and of a live federation share: data frame, figures, and a table for notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from celm.base.errors import CelmError
from celm.report.data_frames import rounds_frame
from celm.report.formatting import format_name, format_number, format_percent, pluralise
from celm.report.many_clients import MAX_LISTED, order_rows, sort_by_weight

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class ContributionViews(ABC):
    """What each client contributed, over the rounds, as a table and as figures. Figures are matplotlib's `Axes`."""

    folder: Path

    @abstractmethod
    def _history(self) -> Sequence[Mapping[str, Any]]:
        """Return the records of the rounds."""

    @abstractmethod
    def _class_names(self) -> Sequence[str]: ...

    @abstractmethod
    def _final_weights(self) -> Mapping[str, float]: ...

    @abstractmethod
    def _headline(self) -> str:
        """Return one line that says what the result is."""

    _selected_key = "clients"
    """Key of the list of the clients that a round selected."""

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per round and client: weight, score, evidence by class, why it was excluded or flagged.

        `weight` is over all clients, `round_weight` in the round's average. `accuracy` is the global model's.
        """
        return rounds_frame(self._history(), self._class_names(), self._selected_key)

    def plot_weights(self, title: str | None = None) -> Axes:
        """Draw the weight of each client over the rounds."""
        from celm.report.line_figures import rounds_figure

        return rounds_figure(self._history(), "client_weights", title)

    def plot_scores(self, title: str | None = None) -> Axes:
        """Draw the score of each client over the rounds."""
        from celm.report.line_figures import rounds_figure

        return rounds_figure(self._history(), "scores", title)

    def plot_evidence(self, title: str | None = None) -> Axes:
        """Draw the last evidence of each client by class as a heatmap."""
        from celm.report.heatmap_figures import evidence_figure

        return evidence_figure(self._require_evidence(), self._class_names(), title=title)

    def plot_shares(self, title: str | None = None) -> Axes:
        """Draw each client's share of the evidence of a class as a heatmap."""
        from celm.report.heatmap_figures import shares_figure

        return shares_figure(self._require_evidence(), self._class_names(), title=title)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report as one HTML file, by default `report.html` in the folder, and return its path."""
        from celm.report.build import write_report

        return write_report(self.folder, None if path is None else Path(path))

    def _last_evidence(self) -> dict[str, list[float]]:
        """Return the last evidence of each client: of the rule, or else of the first observer that has evidence."""
        sources: list[str | None] = [None]
        for record in self._history():
            sources += [name for name in record.get("observed") or {} if name not in sources]
        for source in sources:
            evidence: dict[str, list[float]] = {}
            for record in self._history():
                weighting = record if source is None else (record.get("observed") or {}).get(source) or {}
                evidence |= weighting.get("evidence") or {}
            if evidence:
                return order_rows(evidence, list(self._final_weights()))
        return {}

    def _require_evidence(self) -> dict[str, list[float]]:
        evidence = self._last_evidence()
        if not evidence:
            raise CelmError(
                f"there is no evidence in {self.folder}: its rule computes none",
                "use rule celm, or add observe=['celm']",
            )
        return evidence

    def _repr_html_(self) -> str:
        weights, evidence = self._final_weights(), self._last_evidence()
        names = sort_by_weight(weights)[:MAX_LISTED]
        rows = [
            (
                format_name(name),
                format_percent(weights[name]),
                format_number(sum(evidence[name])) if name in evidence else "–",
            )
            for name in names
        ]
        hidden = len(weights) - len(names)
        note = f"and {pluralise(hidden, 'client')} with less weight" if hidden else ""
        return html_table(self._headline(), ("client", "weight", "evidence"), rows, note)


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return a table for notebooks. All texts are escaped: names come from clients.

    >>> html_table("t", ["a"], [["<b>"]])
    '<table><caption>t</caption><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    lines = [_row("th", headings), *(_row("td", row) for row in rows)]
    body = Markup("").join(lines)
    after = Markup("<p>{}</p>").format(note) if note else Markup("")
    return str(Markup("<table><caption>{}</caption>{}</table>{}").format(escape(title), body, after))


def _row(tag: str, cells: Sequence[str]) -> Markup:
    name = Markup(tag)  # noqa: S704 - one of two constants
    return Markup("<tr>{}</tr>").format(
        Markup("").join(Markup("<{0}>{1}</{0}>").format(name, cell) for cell in cells)
    )
