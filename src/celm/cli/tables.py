"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from celm.cli.fitting import Form, within
from celm.cli.output import printable

if TYPE_CHECKING:
    from celm.auditing.result import Audit
    from celm.federation.run import Run
    from celm.study.table import Table as StudyTable

SHADES = ("grey15", "#12305a", "#1f4f8f", "#2f78c4", "#58a6ff", "#a5d6ff")
"""From no evidence to the most; also told apart by the character, for those who see no colour."""
MARKS = "·░▒▓█"
WIDEST_STRIP = 64


def plain(text: str) -> Text:
    """Text from files, in which brackets are no markup."""
    return Text(printable(text))


def heat_strip(values: Sequence[float], most: float) -> Text:
    """One cell a class, from none to `most`."""
    strip = Text()
    for value in values[:WIDEST_STRIP]:
        level = value / most if most > 0 else 0.0
        mark = MARKS[0] if value <= 0 else MARKS[min(4, 1 + int(4 * level))]
        strip.append(mark, style=SHADES[0 if value <= 0 else min(5, 1 + int(5 * level))])
    if len(values) > WIDEST_STRIP:
        strip.append("…")
    return strip


def contribution_table(run: Run, title: str) -> Table:
    """Client x (weight, evidence by class, classes it really held)."""
    metrics = run.metrics
    evidence = run.evidence
    table = Table(
        title=escape(printable(title)), title_justify="left", title_style="bold", header_style="bold"
    )
    table.add_column("client", overflow="fold")
    table.add_column("weight", justify="right")
    table.add_column("")
    if evidence is not None:
        table.add_column("evidence by class", overflow="fold")
    for observer in metrics["observed"]:
        table.add_column(plain(f"by {observer}"), justify="right", style="dim")
    table.add_column("truly held by class", overflow="fold")
    table.add_column("samples", justify="right")
    heaviest = max(run.weights.values(), default=0.0)
    strongest = max((max(row) for row in (evidence or {}).values()), default=0.0)
    largest = max((max(row) for row in metrics["counts"].values()), default=0)
    for client, weight in run.weights.items():
        bar = "█" * round(12 * weight / heaviest) if heaviest else ""
        row: list[Text] = [plain(client), Text(f"{100 * weight:.1f} %"), Text(bar, style="#58a6ff")]
        if evidence is not None:
            row.append(heat_strip(evidence.get(client, []), strongest))
        for standing in metrics["observed"].values():
            row.append(Text(f"{100 * (standing or {}).get(client, 0.0):.1f} %"))
        held = metrics["counts"].get(client, [])
        row += [heat_strip(held, largest), Text(str(sum(held)))]
        table.add_row(*row)
    return table


def audit_table(found: Audit) -> Table:
    """Client x (score and its standard error, weight, z-score, evidence by class, sole holdings); red if flagged."""
    table = Table(title="contribution audit", title_justify="left", title_style="bold", header_style="bold")
    table.add_column("client", overflow="fold")
    for heading in ("score", "± probe", "weight", "z-score"):
        table.add_column(heading, justify="right")
    table.add_column("evidence by class", overflow="fold")
    table.add_column("sole holder of", overflow="fold")
    strongest = max((max(row) for row in found.evidence.values()), default=0.0)
    for client, score in found.scores.items():
        error = found.probe_standard_errors[client]
        sole = ", ".join(name for name, holder in found.sole_holders.items() if holder == client)
        table.add_row(
            Text(printable(client)),
            Text(f"{100 * score:.1f} %"),
            Text("–" if error is None else f"{100 * error:.2f} %"),
            Text(f"{100 * found.weights[client]:.1f} %"),
            Text(f"{found.z_scores[client]:.2f}"),
            heat_strip(found.evidence[client], strongest),
            Text(printable(sole) or "–"),
            style="red" if client in found.flags else None,
        )
    return table


def holdings_table(
    counts: Mapping[str, Sequence[int]], classes: Sequence[str], title: str, width: int
) -> Group:
    """Client x samples of each class, with totals; what is wider than `width` is turned or cut."""
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    by_client = [[*row, sum(row)] for row in (*counts.values(), totals)]
    by_class = [list(column) for column in zip(*by_client, strict=True)]
    clients, held = [*counts, "total"], [*classes, "total"]
    forms = [
        Form(len(held), partial(holdings, "client", clients, held, by_client)),
        Form(len(clients), partial(holdings, "class", held, clients, by_class)),
    ]
    tables = within(width, forms)
    tables[0].title = escape(printable(title))
    return Group(*tables)


def holdings(
    corner: str,
    names: Sequence[str],
    headings: Sequence[str],
    figures: Sequence[Sequence[int]],
    columns: Sequence[int],
) -> Table:
    """The last row and the last column are totals."""
    shown = Table(title_justify="left", title_style="bold")
    shown.add_column(corner)
    for k in columns:
        shown.add_column(plain(headings[k]), justify="right", style="bold" if k == len(headings) - 1 else "")
    for name, row in zip(names, figures, strict=True):
        if row is figures[-1]:
            shown.add_section()
        cells = [Text(f"{row[k]:,}") if row[k] else Text("·", style="dim") for k in columns]
        shown.add_row(plain(name), *cells, style="bold" if row is figures[-1] else None)
    return shown


def comparison_table(table: StudyTable, width: int) -> Group:
    """Ours with the paper's beside it; the best bold, the second underlined.

    What is wider than `width` characters is turned on its side; if that does not help, it is cut into several
    tables, one below the other.
    """
    forms = [Form(len(form.columns), partial(filled, form)) for form in (table, transposed(table))]
    tables = within(width, forms)
    tables[0].title = escape(printable(table.title))
    tables[-1].caption = table.note or None
    return Group(*tables)


def filled(table: StudyTable, places: Sequence[int]) -> Table:
    columns = [table.columns[place] for place in places]
    shown = Table(title_justify="left", title_style="bold", caption_justify="left")
    shown.add_column("")
    printed = {column for _, column in table.paper}
    for column in columns:
        shown.add_column(plain(column.replace("_", " ")), justify="right")
        if column in printed:
            shown.add_column("paper; difference", justify="right", style="dim")
    for row in table.rows:
        cells: list[Text] = [plain(row)]
        for column in columns:
            style = {1: "bold", 2: "underline"}.get(table.place(row, column), "")
            cells.append(Text(table.own(row, column), style=style))
            if column in printed:
                cells.append(Text(table.beside(row, column)))
        shown.add_row(*cells)
    return shown


def transposed(table: StudyTable) -> StudyTable:
    """Rows as columns; who competes with whom stays."""
    ours, paper = (
        {(column, row): figure for (row, column), figure in figures.items()}
        for figures in (table.ours, table.paper)
    )
    turned: dict[str, Literal["rows", "columns"]] = {"rows": "columns", "columns": "rows"}
    compete = turned.get(table.compete, table.compete)
    return replace(table, rows=table.columns, columns=table.rows, ours=ours, paper=paper, compete=compete)
