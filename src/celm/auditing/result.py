"""What an audit found: numbers, tables, figures and a page, all from one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, overload

from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Audit:
    """`document` is what `celm audit --format json` prints; all else is a view of it."""

    document: Mapping[str, Any]
    files: Sequence[Mapping[str, Any]] = ()
    """The ledger's entries of the files that were read."""
    folder: Path | None = None
    seal: str | None = None
    """SHA-256 of the ledger."""

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {score:.3f}" for name, score in self.scores.items())
        flagged = ", ".join(self.flags) or "nobody"
        return f"Audit({shorten(told, 200, placeholder=' …')}; flagged: {shorten(flagged, 100, placeholder=' …')})"

    @property
    def classes(self) -> list[str]:
        return list(self.document["classes"])

    @property
    def evidence(self) -> dict[str, list[float]]:
        """Client to evidence by class, in the last round."""
        return dict(self.document["evidence"])

    @property
    def shares(self) -> dict[str, list[float]]:
        """Client to its part of each class's evidence."""
        return dict(self.document["shares"])

    @property
    def distribution(self) -> dict[str, list[float]]:
        """The estimated client x class distribution; sums to 1."""
        return dict(self.document["distribution"])

    @property
    def scores(self) -> dict[str, float]:
        """Client to its contribution in the last round; sums to 1."""
        return dict(self.document["scores"])

    @property
    def probe_standard_errors(self) -> dict[str, float | None]:
        """Of the scores, over the starts of the probe; not of data or training."""
        return dict(self.document["probe_standard_errors"])

    @property
    def z_scores(self) -> dict[str, float]:
        return dict(self.document["z_scores"])

    @property
    def weights(self) -> dict[str, float]:
        """Suggested for averaging: scores smoothed over rounds, from equal weights on."""
        return dict(self.document["weights"])

    @property
    def holds(self) -> dict[str, list[str]] | None:
        """Client to the classes it surely holds; None with one start, which cannot tell."""
        return self.document["holds"]  # type: ignore[no-any-return]

    @property
    def sole_holders(self) -> dict[str, str]:
        """Class to the one client that holds it, where the others surely do not."""
        return dict(self.document["sole_holders"])

    @property
    def flags(self) -> dict[str, str]:
        """Free-riders: client to reason."""
        return dict(self.document["flags"])

    @property
    def excluded(self) -> dict[str, str]:
        """Clients that could not be audited: client to reason."""
        return dict(self.document["excluded"])

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Of each round, its scores, weights, flags and exclusions."""
        return list(self.document["rounds"])

    @overload
    def to_json(self, path: None = None) -> str: ...
    @overload
    def to_json(self, path: str | Path) -> None: ...
    def to_json(self, path: str | Path | None = None) -> str | None:
        """The document as text, or written to a file."""
        return kept(dump_json(self.document, indent=2) + "\n", path)

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> None: ...
    def to_html(self, path: str | Path | None = None) -> str | None:
        """A page that needs nothing else, for the members: as text, or written to a file."""
        from celm.report.audit_page import audit_page

        return kept(audit_page(self.document, self.files), path)

    def to_dataframe(self) -> pd.DataFrame:
        """One row a client: score, standard error, weight, z-score, flag, sole holdings, evidence by class."""
        try:
            import pandas
        except ImportError as error:
            raise CelmError("a data frame needs pandas", "pip install 'celm[frames]'") from error
        held = {
            name: [k for k, holder in self.sole_holders.items() if holder == name] for name in self.scores
        }
        rows = [
            {
                "client": name,
                "score": score,
                "probe_standard_error": self.probe_standard_errors[name],
                "weight": self.weights[name],
                "z_score": self.z_scores[name],
                "flag": self.flags.get(name),
                "sole_holder_of": ", ".join(held[name]) or None,
                **{f"evidence of {k}": q for k, q in zip(self.classes, self.evidence[name], strict=True)},
            }
            for name, score in self.scores.items()
        ]
        return pandas.DataFrame(rows).set_index("client")

    def plot_evidence(self, title: str | None = None) -> Axes:
        from celm.report.evidence_figure import evidence_figure

        return evidence_figure(self.evidence, self.classes, title=title)

    def plot_shares(self, title: str | None = None) -> Axes:
        from celm.report.evidence_figure import shares_figure

        return shares_figure(self.evidence, self.classes, title=title)

    def plot_scores(self, title: str | None = None) -> Axes:
        """Bars with the probe's standard errors, and the equal part."""
        from celm.report.scores_figure import scores_figure

        return scores_figure(self.scores, self.probe_standard_errors, self.flags, title)

    def plot_rounds(self, title: str | None = None) -> Axes:
        """Scores over the rounds."""
        from celm.report.rounds_figure import rounds_figure

        return rounds_figure(self.rounds, "scores", title)


def kept(text: str, path: str | Path | None) -> str | None:
    if path is None:
        return text
    write_text(Path(path), text)
    return None
