"""Tables in the terminal: whatever its width, every name and figure is there in one piece."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import celm
from celm.cli.tables import (
    class_counts_table,
    comparison_table,
    run_contribution_table,
    transpose_table,
)
from celm.report.build import write_report
from celm.study.table import ResultTable, Statistic
from support.pages import Page

ROWS, METHODS = ["fashion_mnist pls", "fashion_mnist dirichlet_0.05"], [f"method {i}" for i in range(26)]


def table(rows: list[str], columns: list[str], paper: bool = False) -> ResultTable:
    keys = [(row, column) for row in rows for column in columns]
    figures = {key: Statistic((i + 1) / 100, 0.0123, 2, expected_count=3) for i, key in enumerate(keys)}
    return ResultTable("All of it", rows, columns, figures, figures if paper else {}, "columns")


def printed(study_table: ResultTable, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(comparison_table(study_table, width))
    return text.getvalue()


@pytest.mark.parametrize("width", [80, 120, 400])
@pytest.mark.parametrize(
    ("rows", "columns"), [(ROWS, METHODS), (METHODS, ROWS), (METHODS, METHODS), (ROWS, METHODS[:2])]
)
@pytest.mark.parametrize("paper", [False, True])
def test_nothing_is_cut(rows: list[str], columns: list[str], width: int, paper: bool) -> None:
    study_table = table(rows, columns, paper)
    text = printed(study_table, width)
    assert "…" not in text
    for name in (*rows, *columns):
        assert name in text or name.replace("_", " ") in text
    for figure in study_table.ours.values():
        assert text.count(f" {figure.format()}†") == 1
    assert text.count("All of it") == text.count("2 of 3 seeds") == 1


def test_many_methods_stand_below_one_another() -> None:
    lines = printed(table(ROWS, METHODS), 80).splitlines()
    assert [line.split("│")[1].strip() for line in lines if line.startswith("│")] == METHODS


LONG = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck [bold]"]


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("clients", [1, 5, 30])
@pytest.mark.parametrize("classes", [LONG, [f"class {k}" for k in range(47)]])
def test_who_holds_what_is_shown_whole(classes: list[str], clients: int, width: int) -> None:
    counts = {f"client-{i}": [1000 * i + 2 * k for k in range(len(classes))] for i in range(clients)}
    text = io.StringIO()
    Console(file=text, width=width).print(class_counts_table(counts, classes, "all [red]of it", width))
    lines = text.getvalue().splitlines()
    assert "…" not in text.getvalue()
    assert lines[0].strip() == "all [red]of it"
    assert max(map(len, lines)) <= width
    words = text.getvalue().replace("┃", "│").split("│")
    cells = {word.strip() for word in words}
    assert {*classes, *counts, "total", "·"} <= cells
    assert {f"{sum(row):,}" for row in counts.values()} <= cells
    assert {f"{sum(column):,}" for column in zip(*counts.values(), strict=True) if sum(column)} <= cells
    assert {f"{count:,}" for row in counts.values() for count in row if count} <= cells


def test_who_holds_what_stands_class_by_class_where_that_is_narrower() -> None:
    text = io.StringIO()
    counts = {"hospital a": [5, 0, *[7] * 45], "hospital b": [1234, *[2] * 46]}
    Console(file=text, width=80).print(class_counts_table(counts, [f"class {k}" for k in range(47)], "x", 80))
    cells = [[cell.strip() for cell in line.split("│")] for line in text.getvalue().splitlines()]
    assert ["", "class 0", "5", "1,234", "1,239", ""] in cells
    assert ["", "class 1", "·", "2", "2", ""] in cells
    assert ["", "total", "320", "1,326", "1,646", ""] in cells


def test_rivals_stay_rivals_when_turned() -> None:
    upright = table(ROWS, METHODS)
    turned = transpose_table(upright)
    for row, column in upright.ours:
        assert turned.rank(column, row) == upright.rank(row, column)
    assert transpose_table(turned) == upright


def test_a_run_shows_what_clients_earned_if_it_is_not_their_weight(tmp_path: Path) -> None:
    """What is earned by head evidence is the mean weight of an observer with head evidence."""
    rule = {"name": "celm", "evidence": "calibrated", "warmup": 3}
    observer = {"name": "celm", "evidence": "head", "warmup": 3}
    tables = {
        "split": "pls",
        "rule": {**rule, "scores_from": "head", "agreement": 2.0},
        "observe": [observer],
        "run": {"rounds": 3},
    }
    run = celm.run(celm.Experiment(**tables), out=tmp_path / "run")
    observed = [record["observed"]["celm"]["client_weights"] for record in run.rounds]
    expected = {name: sum(weights[name] for weights in observed) / 3 for name in run.weights}
    text = io.StringIO()
    Console(file=text, width=120).print(run_contribution_table(run, None, "title"))
    header, *rows = [
        line.split("│") for line in text.getvalue().replace("┃", "│").splitlines() if "client" in line
    ]
    column = [heading.strip() for heading in header].index("earned")
    assert {row[1].strip(): row[column].strip() for row in rows} == {
        name: f"{100 * value:.1f} %" for name, value in expected.items()
    }
    assert run.earned == pytest.approx(expected)
    assert run.earned != pytest.approx(run.weights, abs=0.005)
    page = Page(write_report(tmp_path / "run").read_text(encoding="utf-8"))
    shown = set(re.findall(r"[0-9.]+ %", page.text))
    last = run.rounds[-1]
    for values in (expected, last["scores"], last["diagnostics"]["agreement_scores"]):
        assert {f"{100 * value:.1f} %" for value in values.values()} <= shown
    assert "with agreement" in page.text
