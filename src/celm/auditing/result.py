"""The result of an audit: one JSON document, with tables, figures and a page as views of it."""

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

    from celm.auditing.analysis import Findings
    from celm.auditing.settings import AuditSettings


def make_document(
    settings: AuditSettings,
    findings: Findings,
    rounds: Sequence[Mapping[str, Any]],
    weights: Mapping[str, float],
    excluded: Mapping[str, str],
    notes: Mapping[str, str],
    ignored: Sequence[str],
) -> dict[str, Any]:
    """Build the document: the findings of the last round, and the records of all rounds."""
    return {
        "classes": list(settings.classes),
        "scores": findings.scores,
        "agreement_scores": findings.agreement_scores,
        "probe_standard_errors": findings.probe_standard_errors,
        "weights": dict(weights),
        "z_scores": findings.z_scores,
        "flags": findings.flags,
        "holds": findings.holds,
        "possibly_holds": findings.possibly_holds,
        "sole_holders": findings.sole_holders,
        "evidence": findings.evidence,
        "shares": findings.shares,
        "distribution": findings.distribution,
        "bias": findings.bias,
        "movement": findings.movement,
        "excluded": dict(excluded),
        "notes": dict(notes),
        "ignored": list(ignored),
        "rounds": list(rounds),
        "settings": settings.to_dict(),
    }


def make_audited_round(
    number: int,
    name: str,
    findings: Findings | None,
    excluded: Mapping[str, str],
    weights: Mapping[str, float],
) -> dict[str, Any]:
    """Build the record of a round; `findings` is None if no client could be audited."""
    return {
        "round": number,
        "name": name,
        "scores": findings.scores if findings else None,
        "probe_standard_errors": findings.probe_standard_errors if findings else None,
        "client_weights": dict(weights) or None,
        "sole_holders": findings.sole_holders if findings else None,
        "flags": findings.flags if findings else None,
        "excluded": dict(excluded),
    }


@dataclass(frozen=True)
class Audit:
    """The result of an audit. `document` is what `celm audit --format json` prints."""

    document: Mapping[str, Any]
    files: Sequence[Mapping[str, Any]] = ()
    """The ledger's entries."""
    folder: Path | None = None
    """The folder with the report and the ledger."""
    ledger_digest: str | None = None
    """SHA-256 of the ledger."""

    def __repr__(self) -> str:
        score_text = ", ".join(f"{name} {score:.3f}" for name, score in self.scores.items())
        flagged = ", ".join(self.flags) or "none"
        texts = shorten(score_text, 200, placeholder=" …"), shorten(flagged, 100, placeholder=" …")
        return f"Audit({texts[0]}; flagged: {texts[1]})"

    @property
    def classes(self) -> list[str]:
        return list(self.document["classes"])

    @property
    def evidence(self) -> dict[str, list[float]]:
        """Evidence of each client by class, in the last round."""
        return dict(self.document["evidence"])

    @property
    def shares(self) -> dict[str, list[float]]:
        """Share of each client in the evidence of each class."""
        return dict(self.document["shares"])

    @property
    def distribution(self) -> dict[str, list[float]]:
        """Estimated distribution over clients and classes; sums to 1."""
        return dict(self.document["distribution"])

    @property
    def scores(self) -> dict[str, float]:
        """Contribution of each client in the last round; sums to 1."""
        return dict(self.document["scores"])

    @property
    def agreement_scores(self) -> dict[str, float] | None:
        """Scores with claims lowered where clients disagree; None unless the audit measured `agreement`."""
        found = self.document.get("agreement_scores")
        return None if found is None else dict(found)

    @property
    def probe_standard_errors(self) -> dict[str, float | None]:
        """Standard errors of the scores over the starts of the probe; not over data or training."""
        return dict(self.document["probe_standard_errors"])

    @property
    def z_scores(self) -> dict[str, float]:
        """Distance of each score from the mean score, in standard deviations."""
        return dict(self.document["z_scores"])

    @property
    def weights(self) -> dict[str, float]:
        """Suggested aggregation weights: the scores, smoothed if there are several rounds; 0 for flagged clients."""
        return dict(self.document["weights"])

    @property
    def holds(self) -> dict[str, list[str]] | None:
        """Classes that each client surely holds; None with one start, which has no standard error."""
        return self.document["holds"]  # type: ignore[no-any-return]

    @property
    def possibly_holds(self) -> dict[str, list[str]] | None:
        """Further classes, which each client possibly holds; None with one start."""
        return self.document.get("possibly_holds")

    @property
    def sole_holders(self) -> dict[str, str]:
        """Client that surely holds a class, by class, if all others surely do not."""
        return dict(self.document["sole_holders"])

    @property
    def flags(self) -> dict[str, str]:
        """Reason for each client that is flagged as a free-rider."""
        return dict(self.document["flags"])

    @property
    def excluded(self) -> dict[str, str]:
        """Reason for each client that could not be audited."""
        return dict(self.document["excluded"])

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Scores, weights, flags and excluded clients of each round."""
        return list(self.document["rounds"])

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page for the members, by default `report.html` in the audit's folder, and return its path."""
        if path is None and self.folder is None:
            raise CelmError("the audit has no folder", "give the path of the report")
        report_path = Path(path) if path is not None else Path(self.folder or "") / "report.html"
        self.to_html(report_path)
        return report_path

    def _repr_html_(self) -> str:
        from celm.report.contribution_views import html_table
        from celm.report.formatting import format_name, format_percent, format_text
        from celm.report.many_clients import sort_by_weight

        rows = [
            (format_name(name), format_percent(self.scores[name]), format_text(self.flags.get(name, "")))
            for name in sort_by_weight(self.scores)
        ]
        rows += [(format_name(name), "–", format_text(reason)) for name, reason in self.excluded.items()]
        return html_table("Audit", ("client", "score", "flag"), rows)

    @overload
    def to_json(self, path: None = None) -> str: ...
    @overload
    def to_json(self, path: str | Path) -> None: ...
    def to_json(self, path: str | Path | None = None) -> str | None:
        """Return the document as text, or write it to a file."""
        return _write_or_return(dump_json(self.document, indent=2) + "\n", path)

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> None: ...
    def to_html(self, path: str | Path | None = None) -> str | None:
        """Return a self-contained page for the members, or write it to a file."""
        from celm.report.audit_page import audit_page

        return _write_or_return(audit_page(self.document, self.files), path)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per client: score, standard error, weight, z-score, flag, sole holdings, evidence by class."""
        from celm.report.data_frames import import_pandas

        pandas = import_pandas()
        sole_classes = {
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
                "sole_holder_of": ", ".join(sole_classes[name]) or None,
                **{f"evidence of {k}": q for k, q in zip(self.classes, self.evidence[name], strict=True)},
            }
            for name, score in self.scores.items()
        ]
        frame: pd.DataFrame = pandas.DataFrame(rows).set_index("client")
        return frame

    def plot_evidence(self, title: str | None = None) -> Axes:
        """Draw the evidence as a heatmap."""
        from celm.report import evidence_figure

        return evidence_figure(self.evidence, self.classes, title=title)

    def plot_shares(self, title: str | None = None) -> Axes:
        """Draw the shares as a heatmap."""
        from celm.report import shares_figure

        return shares_figure(self.evidence, self.classes, title=title)

    def plot_scores(self, title: str | None = None) -> Axes:
        """Draw the scores as bars, with the probe's standard errors and a line at the equal share."""
        from celm.report import scores_figure

        return scores_figure(self.scores, self.probe_standard_errors, self.flags, title)

    def plot_weights(self, title: str | None = None) -> Axes:
        """Draw the suggested weights over the rounds."""
        from celm.report import rounds_figure

        return rounds_figure(self.rounds, "client_weights", title)

    def plot_rounds(self, title: str | None = None) -> Axes:
        """Draw the scores over the rounds."""
        from celm.report import rounds_figure

        return rounds_figure(self.rounds, "scores", title)


def _write_or_return(text: str, path: str | Path | None) -> str | None:
    if path is None:
        return text
    write_text(Path(path), text)
    return None
