"""The state folder of a live federation, as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError
from celm.report.contribution_views import ContributionViews
from celm.report.formatting import pluralise
from celm.report.views import FederationView

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Federation(ContributionViews):
    """A live federation, as far as its record goes. The chain of the record was checked."""

    _selected_key = "asked"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._view = FederationView(folder)
        self._records = [record.model_dump() for record in self._view.rounds]

    def __repr__(self) -> str:
        return f"Federation({self._headline()})"

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The lines of rounds.jsonl."""
        return self._records

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings, with their amendments."""
        return self._view.raw_settings

    @property
    def weights(self) -> Mapping[str, float]:
        """Client to its weight after the last round, over all known clients."""
        return self._view.weights

    @property
    def evidence(self) -> Mapping[str, list[float]] | None:
        """Client to evidence by class, in the last round with a probe; None if there is none."""
        return self._view.evidence

    @property
    def flags(self) -> Mapping[str, Mapping[str, str]]:
        """Client to kind of flag to reason, in the last round."""
        flags: Mapping[str, Mapping[str, str]] = self._records[-1]["flags"]
        return flags

    @property
    def digest(self) -> str:
        """Digest of the last line of the record, for `celm audit-verify --last`."""
        return self._view.digest

    def plot_metrics(self, name: str = "accuracy", title: str | None = None) -> Axes:
        """Draw a metric over the rounds, from evaluations by clients or the server, or from training."""
        from celm.base.errors import suggest_name
        from celm.records.metric_series import SOURCE_NAMES
        from celm.report.line_figures import metrics_figure

        series = [line for line in self._view.metrics if line.name == name]
        if not series:
            names = {line.name for line in self._view.metrics}
            hint = suggest_name(name, names) if names else "no metric was reported"
            raise CelmError(f"the federation in {self.folder} has no metric '{name}'", hint)
        return metrics_figure(series, [SOURCE_NAMES[line.source] for line in series], title)

    def _history(self) -> Sequence[Mapping[str, Any]]:
        return self._records

    def _class_names(self) -> Sequence[str]:
        return self._view.classes

    def _final_weights(self) -> Mapping[str, float]:
        return self.weights

    def _headline(self) -> str:
        rounds = f"{len(self._records)} of {pluralise(self._view.settings.rounds, 'round')}"
        return (
            f"rule {self._view.settings.rule.get('name')}: {rounds}, {pluralise(len(self.weights), 'client')}"
        )
