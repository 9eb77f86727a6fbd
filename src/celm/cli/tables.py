"""Tables for the terminal: contributions of a run, an audit, class counts, comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from celm.cli.output import printable
from celm.cli.table_layout import TableLayout, fit_to_width

if TYPE_CHECKING:
    from celm.auditing.result import Audit
    from celm.core.class_holders import ClassClaims
    from celm.runs.run import Run
    from celm.study.table import ResultTable as StudyTable

_HEAT_COLOURS = ("grey15", "#12305a", "#1f4f8f", "#2f78c4", "#58a6ff", "#a5d6ff")
"""Colours from no evidence to the most; the characters differ too, so the strip can be read without colour."""
_HEAT_MARKS = "·░▒▓█"
_MAX_STRIP_WIDTH = 64
_BAR_WIDTH = 10
"""Characters of the heaviest client's bar; ten classes and the other columns then fit into 80."""


def _printable_text(text: str) -> Text:
    """Return text from files, in which brackets are not markup."""
    return Text(printable(text))


def _heat_strip(values: Sequence[float], maximum: float) -> Text:
    """Return one character per class, from no evidence to `maximum`."""
    strip = Text()
    for value in values[:_MAX_STRIP_WIDTH]:
        level = value / maximum if maximum > 0 else 0.0
        mark = _HEAT_MARKS[0] if value <= 0 else _HEAT_MARKS[min(4, 1 + int(4 * level))]
        strip.append(mark, style=_HEAT_COLOURS[0 if value <= 0 else min(5, 1 + int(5 * level))])
    if len(values) > _MAX_STRIP_WIDTH:
        strip.append("…")
    return strip


def run_contribution_table(run: Run, claims: ClassClaims | None, title: str) -> Table:
    """Return client x (weight, evidence by class, classes surely held, true samples by class).

    If scores come from other evidence than weights, there is also what each client earned.
    """
    metrics = run.metrics
    evidence = run.evidence
    table = Table(
        title=escape(printable(title)), title_justify="left", title_style="bold", header_style="bold"
    )
    table.add_column("client", overflow="fold")
    table.add_column("weight", justify="right")
    table.add_column("")
    shows_earned = run.experiment.rule.has_other_scores
    if shows_earned:
        table.add_column("earned", justify="right")
    if evidence is not None:
        table.add_column("evidence by class", overflow="fold")
    if claims is not None:
        table.add_column("surely", justify="right")
    for observer in metrics["observed"]:
        table.add_column(_printable_text(f"by {observer}"), justify="right", style="dim")
    table.add_column("truly held by class", overflow="fold")
    table.add_column("samples", justify="right")
    heaviest = max(run.weights.values(), default=0.0)
    strongest = max((max(row) for row in (evidence or {}).values()), default=0.0)
    largest = max((max(row) for row in metrics["counts"].values()), default=0)
    for client, weight in run.weights.items():
        bar = "█" * round(_BAR_WIDTH * weight / heaviest) if heaviest else ""
        row: list[Text] = [_printable_text(client), Text(f"{100 * weight:.1f} %"), Text(bar, style="#58a6ff")]
        if shows_earned:
            row.append(Text(f"{100 * run.earned.get(client, 0.0):.1f} %"))
        if evidence is not None:
            row.append(_heat_strip(evidence.get(client, []), strongest))
        if claims is not None:
            sure_classes = claims.surely.get(client)
            row.append(Text("–" if sure_classes is None else f"{len(sure_classes)} of {claims.num_classes}"))
        for observer_weights in metrics["observed"].values():
            row.append(Text(f"{100 * (observer_weights or {}).get(client, 0.0):.1f} %"))
        class_counts = metrics["counts"].get(client, [])
        row += [_heat_strip(class_counts, largest), Text(str(sum(class_counts)))]
        table.add_row(*row)
    return table


def audit_table(audit: Audit) -> Table:
    """Return client x (score, standard error, weight, z-score, evidence by class, sole classes); flags are red."""
    table = Table(title="contribution audit", title_justify="left", title_style="bold", header_style="bold")
    table.add_column("client", overflow="fold")
    agreed = audit.agreement_scores
    for heading in ("score", *(["agreed"] if agreed is not None else []), "± probe", "weight", "z-score"):
        table.add_column(heading, justify="right")
    table.add_column("evidence by class", overflow="fold")
    table.add_column("sole holder of", overflow="fold")
    strongest = max((max(row) for row in audit.evidence.values()), default=0.0)
    for client, score in audit.scores.items():
        error = audit.probe_standard_errors[client]
        sole = ", ".join(name for name, holder in audit.sole_holders.items() if holder == client)
        table.add_row(
            Text(printable(client)),
            Text(f"{100 * score:.1f} %"),
            *([Text(f"{100 * agreed[client]:.1f} %")] if agreed is not None else []),
            Text("–" if error is None else f"{100 * error:.2f} %"),
            Text(f"{100 * audit.weights[client]:.1f} %"),
            Text(f"{audit.z_scores[client]:.2f}"),
            _heat_strip(audit.evidence[client], strongest),
            Text(printable(sole) or "–"),
            style="red" if client in audit.flags else None,
        )
    return table


def class_counts_table(
    counts: Mapping[str, Sequence[int]], classes: Sequence[str], title: str, width: int
) -> Group:
    """Return client x samples of each class, with totals; a table wider than `width` is transposed or divided."""
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    by_client = [[*row, sum(row)] for row in (*counts.values(), totals)]
    by_class = [list(column) for column in zip(*by_client, strict=True)]
    clients, class_headings = [*counts, "total"], [*classes, "total"]
    layouts = [
        TableLayout(
            len(class_headings), partial(_fill_class_counts, "client", clients, class_headings, by_client)
        ),
        TableLayout(len(clients), partial(_fill_class_counts, "class", class_headings, clients, by_class)),
    ]
    tables = fit_to_width(width, layouts)
    tables[0].title = escape(printable(title))
    return Group(*tables)


def _fill_class_counts(
    corner: str,
    names: Sequence[str],
    headings: Sequence[str],
    counts: Sequence[Sequence[int]],
    columns: Sequence[int],
) -> Table:
    """Build a table whose last row and last column are totals."""
    table = Table(title_justify="left", title_style="bold")
    table.add_column(corner)
    for k in columns:
        table.add_column(
            _printable_text(headings[k]), justify="right", style="bold" if k == len(headings) - 1 else ""
        )
    for name, row in zip(names, counts, strict=True):
        if row is counts[-1]:
            table.add_section()
        cells = [Text(f"{row[k]:,}") if row[k] else Text("·", style="dim") for k in columns]
        table.add_row(_printable_text(name), *cells, style="bold" if row is counts[-1] else None)
    return table


def comparison_table(table: StudyTable, width: int) -> Group:
    """Return our figures with the paper's beside them; the best is bold, the second best underlined.

    A table wider than `width` characters is transposed. If that is still too wide, it is divided into several tables,
    one below the other.
    """
    layouts = [
        TableLayout(len(study_table.columns), partial(_fill_table, study_table))
        for study_table in (table, transpose_table(table))
    ]
    tables = fit_to_width(width, layouts)
    tables[0].title = escape(printable(table.title))
    tables[-1].caption = table.note or None
    return Group(*tables)


def _fill_table(table: StudyTable, column_indices: Sequence[int]) -> Table:
    columns = [table.columns[index] for index in column_indices]
    rich_table = Table(title_justify="left", title_style="bold", caption_justify="left")
    rich_table.add_column("")
    paper_columns = {column for _, column in table.paper}
    for column in columns:
        rich_table.add_column(_printable_text(column.replace("_", " ")), justify="right")
        if column in paper_columns:
            rich_table.add_column("paper; difference", justify="right", style="dim")
    for row in table.rows:
        cells: list[Text] = [_printable_text(row)]
        for column in columns:
            style = {1: "bold", 2: "underline"}.get(table.rank(row, column), "")
            cells.append(Text(table.format_ours(row, column), style=style))
            if column in paper_columns:
                cells.append(Text(table.format_paper(row, column)))
        rich_table.add_row(*cells)
    return rich_table


def transpose_table(table: StudyTable) -> StudyTable:
    """Return the table with rows and columns swapped; the same cells compete for ranks."""
    ours, paper = (
        {(column, row): figure for (row, column), figure in figures.items()}
        for figures in (table.ours, table.paper)
    )
    swapped: dict[str, Literal["rows", "columns"]] = {"rows": "columns", "columns": "rows"}
    compete = swapped.get(table.compare, table.compare)
    return replace(table, rows=table.columns, columns=table.rows, ours=ours, paper=paper, compare=compete)
