"""Tables: mean and spread over seeds, marks for the best, the paper's figure beside ours."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from celm.study.table import ResultTable, Statistic, escape_latex

OURS = {
    ("fedavg", "accuracy"): Statistic(0.8062, 0.0052, 3),
    ("celm", "accuracy"): Statistic(0.8370, 0.0019, 3),
    ("cffl", "accuracy"): Statistic(0.8095, 0.0181, 3),
}
PAPER = {("celm", "accuracy"): Statistic(0.84, 0.002, 3)}
TABLE = ResultTable("a title", ["fedavg", "cffl", "celm", "cgsv"], ["accuracy"], OURS, PAPER)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_figure_is_the_mean_and_the_sample_deviation(values):
    figure = Statistic.from_values(values)
    assert figure.mean == pytest.approx(np.mean(values))
    assert figure.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert figure.count == len(values)


def test_a_single_seed_has_no_spread():
    assert Statistic.from_values([0.5]) == Statistic(0.5, None, 1)
    assert Statistic.from_values([0.5]).format() == "50.00"


def test_figures_with_fewer_seeds_than_meant_are_marked_and_explained():
    ours = {key: replace(figure, expected_count=3) for key, figure in OURS.items()}
    ours["cgsv", "accuracy"] = Statistic(0.5, None, 1, expected_count=3)
    table = replace(TABLE, ours=ours)
    markdown, latex = table.to_markdown(), table.to_latex()
    assert "| cgsv | 50.00† |" in markdown
    assert markdown.count("†") == 2
    assert markdown.endswith("\n† 1 of 3 seeds\n")
    assert r"50.00$^\dagger$" in latex
    assert r"\caption{a title. Mean $\pm$ standard deviation over seeds. $^\dagger$ 1 of 3 seeds}" in latex
    assert [cell["meant"] for cell in table.to_json()["cells"]] == [3] * 4
    assert "†" not in replace(table, ours=OURS).to_markdown()


def test_best_and_second_are_marked_among_the_rows_of_a_column():
    assert [TABLE.rank(row, "accuracy") for row in TABLE.rows] == [0, 2, 1, 0]


def test_best_and_second_can_be_sought_along_a_row():
    table = ResultTable(
        "",
        ["r"],
        ["a", "b", "c"],
        {("r", c): Statistic(v, None, 1) for c, v in zip("abc", (0.1, 0.3, 0.2), strict=True)},
        {},
        "columns",
    )
    assert [table.rank("r", column) for column in table.columns] == [0, 1, 2]


def test_figures_that_look_the_same_share_a_place():
    same = {
        ("a", "x"): Statistic(0.50001, None, 1),
        ("b", "x"): Statistic(0.50004, None, 1),
        ("c", "x"): Statistic(0.4, None, 1),
    }
    table = ResultTable("", ["a", "b", "c"], ["x"], same, {})
    assert [table.rank(row, "x") for row in "abc"] == [1, 1, 2]


@given(st.lists(st.integers(0, 10_000), min_size=4, max_size=4), st.booleans())
@example([8002, 8003, 8003, 8004], False)  # means of halves, which binary numbers are seldom
def test_places_are_by_what_is_shown(counts, percent):
    """Two methods, two seeds each, on ten thousand test samples."""
    pairs = {"a": counts[:2], "b": counts[2:]}
    ours = {
        (row, "x"): Statistic.from_values([n / 10_000 for n in pair], percent) for row, pair in pairs.items()
    }
    table = ResultTable("", ["a", "b"], ["x"], ours, {})
    shown = {row: ours[row, "x"].format_number(ours[row, "x"].mean) for row in "ab"}
    places = [table.rank(row, "x") for row in "ab"]
    assert (places == [0, 0]) == (shown["a"] == shown["b"])


def test_what_is_short_of_different_numbers_is_told_apart():
    ours = {
        ("r", "a"): Statistic(0.5, None, 1, expected_count=3),
        ("r", "b"): Statistic(0.5, 0.1, 2, expected_count=3),
        ("r", "c"): Statistic(0.5, 0.1, 4, expected_count=6),
        ("r", "d"): Statistic(0.5, 0.1, 6, expected_count=6),
    }
    table = ResultTable("", ["r"], ["a", "b", "c", "d"], ours, {}, averaged_over="federations")
    assert table.note == "† 1 or 2 of 3, 4 of 6 federations"
    assert [table.format_ours("r", column)[-1] == "†" for column in "abcd"] == [True, True, True, False]


def test_what_has_no_figure_is_of_no_kind():
    (cell,) = ResultTable("", ["r"], ["c"], {}, {}).to_json()["cells"]
    assert [cell[name] for name in ("mean", "percent", "low", "ranked", "place")] == [None] * 4 + [0]


def test_markdown_shows_ours_marked_and_the_papers_in_brackets():
    lines = TABLE.to_markdown().splitlines()
    assert "| celm | **83.70 ± 0.19** (84.00 ± 0.20; -0.30) |" in lines
    assert "| cffl | <u>80.95 ± 1.81</u> |" in lines
    assert "| cgsv | – |" in lines


def test_latex_escapes_and_marks():
    table = ResultTable(
        "",
        ["leave_one_out", "celm"],
        ["rare_class"],
        {
            ("celm", "rare_class"): Statistic(0.5, 0.1, 2),
            ("leave_one_out", "rare_class"): Statistic(0.4, 0.1, 2),
        },
        {},
    )
    text = table.to_latex()
    assert r"leave\_one\_out & \underline{40.00 $\pm$ 10.00} \\" in text
    assert r"\textbf{50.00 $\pm$ 10.00}" in text
    assert text.count(r"\\") == 3


LABELS = st.text(
    st.one_of(
        st.sampled_from("\\{}^~|<>&*_`[]()!#$%\"' a1"),
        st.characters(codec="utf-8", exclude_categories=["C", "Z"]),
    ),
    max_size=12,
).map(lambda text: " ".join(text.split()))


@given(title=LABELS.filter(bool), row=LABELS, column=LABELS)
@example(title="a b", row="a|b", column="<b>x</b> **y** _z_ &amp; fashion_mnist")
def test_labels_stay_text_in_markdown(title, row, column):
    table = ResultTable(title, [row], [column], {}, {})
    page = MarkdownIt("commonmark").enable("table").enable("strikethrough").render(table.to_markdown())
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", page)
    assert [html.unescape(cell) for cell in cells] == ["", column, row, "–"]
    assert html.unescape(page.partition("</p>")[0]) == f"<p><strong>{title}</strong>"


COMMANDS = {
    "textbackslash{}": "\\",
    "textasciicircum{}": "^",
    "textasciitilde{}": "~",
    "textless{}": "<",
    "textgreater{}": ">",
    "textbar{}": "|",
} | {char: char for char in "_%&#${}"}


def typeset(text):
    """What LaTeX shows of text; a character that is not escaped and means something is an error."""
    shown = ""
    while text:
        if text[0] == "\\":
            command = next(name for name in COMMANDS if text[1:].startswith(name))
            shown, text = shown + COMMANDS[command], text[1 + len(command) :]
        else:
            assert text[0] not in "{}^~_%&#$"
            shown, text = shown + text[0], text[1:]
    return shown


@given(row=LABELS, column=LABELS)
@example(row="a_b^2~{c} \\\\ 5 %", column="<&#$>")
def test_labels_stay_text_in_latex(row, column):
    assert typeset(escape_latex(row)) == row
    lines = ResultTable("", [row], [column], {}, {}).to_latex().splitlines()
    assert lines[6] == rf" & {escape_latex(column)} \\"
    assert lines[8] == rf"{escape_latex(row)} & – \\"


def test_latex_has_a_caption_a_label_and_headings_in_words():
    text = TABLE.to_latex()
    assert r"\caption{a title. Mean $\pm$ standard deviation over seeds.}" in text
    assert r"\label{tab:a-title}" in text
    assert r" & Accuracy (\%) \\" in text
    assert text.startswith(r"\begin{table}[t]")
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


def test_with_few_seeds_no_place_is_marked():
    few = replace(TABLE, min_ranked_count=4)
    assert [few.rank(row, "accuracy") for row in few.rows] == [0, 0, 0, 0]
    assert "**8" not in few.to_markdown()
    assert replace(TABLE, min_ranked_count=3).rank("celm", "accuracy") == 1


def test_labels_of_several_lines_stay_on_one():
    table = ResultTable("a\n\nb", ["r\n| x |"], ["c\nd"], {}, {})
    assert table.to_markdown().splitlines()[:5] == [
        "**a b**",
        "",
        "| | c d |",
        "|---|---|",
        r"| r \| x \| | – |",
    ]
    assert "c d" in table.to_latex()


def test_json_and_csv_say_the_same():
    cells = json.loads(json.dumps(TABLE.to_json()))["cells"]
    rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert [row["row"] for row in rows] == [cell["row"] for cell in cells]
    celm = next(cell for cell in cells if cell["row"] == "celm")
    assert celm["difference"] == pytest.approx(-0.003)
    assert float(next(row for row in rows if row["row"] == "celm")["difference"]) == pytest.approx(-0.003)
    assert next(row for row in rows if row["row"] == "cgsv")["mean"] == ""


def test_figures_of_which_neither_end_is_better_are_not_marked():
    ours = {
        ("r", name): Statistic.from_values([value], ranked=False) for name, value in (("a", 0.1), ("b", 0.3))
    }
    table = ResultTable("", ["r"], ["a", "b"], ours, {}, "columns")
    assert [table.rank("r", column) for column in table.columns] == [0, 0]
    assert [cell["ranked"] for cell in table.to_json()["cells"]] == [False, False]


def test_where_nothing_competes_nothing_is_marked():
    table = replace(TABLE, compare="none")
    assert [table.rank(row, "accuracy") for row in table.rows] == [0, 0, 0, 0]
    assert "<u>" not in table.to_markdown()


def test_text_that_a_spreadsheet_would_run_is_escaped_in_csv_and_numbers_are_not():
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "ward", "a\r=1"]
    ours = {(name, "c"): Statistic(-0.5, 0.1, 2) for name in names}
    rows = list(csv.DictReader(io.StringIO(ResultTable("", names, ["c"], ours, {}).to_csv())))
    assert [row["row"] for row in rows] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "ward", r"a\r=1"]
    assert {row["mean"] for row in rows} == {"-0.5"}
