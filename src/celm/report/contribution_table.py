"""The table of contributions of runs, federations and audits. Each column says who computed it, and from what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from celm.report.client_summaries import ClientSummary
from celm.report.formatting import format_number, format_percent
from celm.report.rank_stability import RankStability

THIS_PAGE = "this page"

NumberSource = tuple[str, str, str]
"""A number, who computed it, and from what."""


@dataclass(frozen=True)
class Cell:
    """One entry of the table."""

    text: str = "–"
    value: float | None = None
    """Sort value, if it is not the text."""
    meter: float | None = None
    """Length of the bar beside the text, from 0 to 1."""
    names: Sequence[str] = ()
    """Names in place of the text."""


@dataclass(frozen=True)
class Column:
    """One quantity of all clients."""

    heading: str
    by: str
    """Who computed it."""
    source: str
    """What it was computed from."""
    cells: Mapping[str, Cell]
    numeric: bool = True

    def cell(self, client: str) -> Cell:
        """Return the cell of a client; a dash if it has none."""
        return self.cells.get(client, Cell())


def earned_column(earned: Mapping[str, float], decimals: int) -> Column:
    """Return the column of what clients earned."""
    source = (
        "the mean over all rounds of the client's contribution, "
        "which is 0 in rounds without a usable update that shows training"
    )
    return percent_column("earned", "the server", source, dict(earned), decimals)


def agreement_columns(
    rounds: Sequence[tuple[Mapping[str, float] | None, Mapping[str, float] | None]], decimals: int
) -> list[Column]:
    """Return the last scores without and with agreement between clients; none if no round measured it.

    Each round has its scores and its `agreement_scores`.
    """
    measured = [(scores, agreed) for scores, agreed in rounds if scores and agreed]
    if not measured:
        return []
    scores, agreed = measured[-1]
    source = "the same claims, lowered where a client's rows disagree with those of other clients"
    return [
        percent_column("score", "the server", "the claims up to the last warm-up round", scores, decimals),
        percent_column("with agreement", "the server", source, agreed, decimals),
    ]


def percent_column(
    heading: str,
    by: str,
    source: str,
    values: Mapping[str, float | None],
    decimals: int = 1,
    has_meter: bool = False,
) -> Column:
    """Return a column of fractions in percent; with `has_meter`, each has a bar."""
    largest = max((value for value in values.values() if value is not None), default=0.0)
    return Column(
        heading,
        by,
        source,
        {
            client: Cell(
                format_percent(value, decimals),
                value,
                max(0.0, value / largest) if has_meter and largest > 0 else None,
            )
            for client, value in values.items()
            if value is not None
        },
    )


def number_column(
    heading: str, by: str, source: str, values: Mapping[str, float | None], decimals: int = 2
) -> Column:
    """Return a column of numbers."""
    cells = {
        client: Cell(format_number(value, decimals), value)
        for client, value in values.items()
        if value is not None
    }
    return Column(heading, by, source, cells)


def count_column(
    heading: str, by: str, source: str, counts: Mapping[str, int | None], dash_for_zero: bool = False
) -> Column:
    """Return a column of counts. With `dash_for_zero`, a zero is shown as a dash."""
    cells = {
        client: Cell("–" if dash_for_zero and not count else str(count), count)
        for client, count in counts.items()
        if count is not None
    }
    return Column(heading, by, source, cells)


def names_column(heading: str, by: str, source: str, names: Mapping[str, Sequence[str]]) -> Column:
    """Return a column of names, such as those of classes."""
    cells = {client: Cell(names=row) for client, row in names.items() if row}
    return Column(heading, by, source, cells, numeric=False)


def rank_column(stability: RankStability) -> Column:
    """Return the column of best and worst ranks; it sorts by the worst."""
    cells = {
        client: Cell(history.rank_range, history.ranks[1]) for client, history in stability.histories.items()
    }
    source = "ranks by score in the rounds with scores, best to worst"
    return Column("rank range", THIS_PAGE, source, cells)


def holding_columns(
    summaries: Iterable[ClientSummary],
    classes: Sequence[str],
    evidence: Mapping[str, Sequence[float]] | None,
    measured_by: str,
    has_claims: bool,
) -> list[Column]:
    """Return the columns on evidence and classes of a run or a federation; none without evidence."""
    if not evidence:
        return []
    summaries = list(summaries)
    totals = number_column(
        "evidence",
        measured_by,
        "the probe of the client's model for each class; summed over classes",
        {client: sum(row) for client, row in evidence.items()},
    )
    if not has_claims:
        source = "classes with evidence in the client's last probe; not tested"
        counts = {
            s.client: None if s.evidence_classes is None else len(s.evidence_classes) for s in summaries
        }
        return [count_column("evidence for", THIS_PAGE, source, counts), totals]
    source = "evidence of the probed rounds after the first, by the test in the summary"
    surely = {s.client: None if s.surely is None else len(s.surely) for s in summaries}
    possibly = {s.client: None if s.possibly is None else len(s.possibly) for s in summaries}
    return [
        count_column("surely holds", THIS_PAGE, source, surely),
        count_column("possibly", THIS_PAGE, source, possibly),
        totals,
        names_column(
            "sole evidence for",
            THIS_PAGE,
            "the same test; no other tested client has evidence",
            {s.client: [classes[k] for k in s.sole_classes] for s in summaries},
        ),
    ]


def score_sources(measured_by: str) -> list[NumberSource]:
    """Return the sources of the numbers between evidence and weights, which have no column."""
    return [
        ("share", measured_by, "the client's evidence for a class, divided by that of all clients"),
        ("score", measured_by, "the client's shares in one round, averaged over all classes"),
    ]
