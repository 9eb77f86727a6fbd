"""The figures draw the given data without overlap; equal data give equal bytes; names are not interpreted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.container import BarContainer
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from celm.base.errors import CelmError
from celm.report import (
    accuracy_figure,
    evidence_figure,
    fidelity_figure,
    per_class_figure,
    probe_figure,
    rounds_figure,
    save_figure,
    scores_figure,
    sensitivity_figure,
    shares_figure,
    style,
    threshold_figure,
)
from celm.report.line_chart import spread_labels
from celm.report.style import figure_style, root_figure
from celm.report.svg import inline_svg

SHAPES = [(5, 10), (20, 10), (6, 8), (5, 47)]
HOSTILE = ["$\\frac{", "<script>&\n\u202e病院", "_^{$$}", "x" * 99, "", "%s\\", "-->"]
EVIDENCE = {"a": [1.0, 0.0], "b": [3.0, 0.0]}


def every_figure(clients: list[str], classes: list[str]) -> dict[str, Callable[[], Axes]]:
    rng = np.random.RandomState(0)
    table = {name: (rng.rand(len(classes)) * (rng.rand(len(classes)) > 0.4)).tolist() for name in clients}
    table[clients[0]][0] = 1.0
    rounds: list[dict[str, Any]] = [
        {"round": r, "client_weights": dict(zip(clients, rng.dirichlet(np.ones(len(clients))), strict=True))}
        for r in range(1, 20)
    ]
    curves = {
        name: {seed: [{"round": r, "accuracy": rng.rand()} for r in range(1, 9)] for seed in (1, 2)}
        for name in clients[:7]
    }
    images = {name: rng.rand(len(classes), 1, 4, 4) for name in clients}
    rates = {name: rng.rand(5).tolist() for name in clients[:7]}
    methods = {name: rng.rand(len(classes)).tolist() for name in clients[:5]}
    return {
        "evidence": lambda: evidence_figure(table, classes, table, title=clients[0]),
        "shares": lambda: shares_figure(table, classes),
        "fidelity": lambda: fidelity_figure(table, table, classes, title="both"),
        "rounds": lambda: rounds_figure(rounds, title="weights"),
        "accuracy": lambda: accuracy_figure(curves),
        "threshold": lambda: threshold_figure([-3, -2, -1, -0.5, 0], rates),
        "probe": lambda: probe_figure(images, classes, table),
        "per_class": lambda: per_class_figure(methods, classes, rare=[1], title="by class"),
        "scores": lambda: scores_figure(
            rounds[0]["client_weights"], dict.fromkeys(clients, 0.01), clients[:1], title="scores"
        ),
        "sensitivity": lambda: sensitivity_figure(
            {(L, r): rng.rand() for L in (25, 50) for r in (0.1, 0.01)}
        ),
    }


FIGURES = list(every_figure(["a"], ["b"]))
BY_CLIENT_OR_CLASS = ["evidence", "shares", "fidelity", "rounds", "probe", "per_class", "scores"]


def cells(axes: Axes) -> list[Rectangle]:
    return [p for p in axes.patches if isinstance(p, Rectangle) and p.get_fill()]


def outlines(axes: Axes) -> list[tuple[float, float]]:
    frames = [p for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
    return [(round(p.get_x() + p.get_width() / 2), round(p.get_y() + p.get_height() / 2)) for p in frames]


def named_lines(axes: Axes) -> list[list[Any]]:
    """Return the points of thick lines. Thin lines lead to names."""
    return [
        [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]
        for line in axes.lines
        if line.get_linewidth() > 1
    ]


def test_the_opacity_of_a_cell_is_proportional_to_its_evidence() -> None:
    axes = evidence_figure(EVIDENCE)
    assert [cell.get_alpha() for cell in cells(axes)] == pytest.approx([1 / 3, 0, 1, 0], abs=1e-3)
    assert [text.get_text() for text in axes.texts] == ["1.00", "3.00"]
    assert not outlines(axes)


def test_shares_are_columns_in_percent() -> None:
    assert [text.get_text() for text in shares_figure(EVIDENCE).texts] == ["25", "75"]


def test_classes_truly_held_are_outlined() -> None:
    assert outlines(evidence_figure(EVIDENCE, counts={"a": [0, 2], "b": [1, 0]})) == [(1, 0), (0, 1)]


def test_fidelity_shows_both_distributions_on_one_scale_and_both_marginals() -> None:
    axes = fidelity_figure({"a": [6, 2], "b": [0, 2]}, {"b": [0, 1], "a": [1, 0]})
    panels = root_figure(axes).axes
    areas = [c.get_sizes() for panel in panels for c in panel.collections if isinstance(c, PathCollection)]
    assert areas[0] / areas[0].max() == pytest.approx([1, 1 / 3, 1 / 3])
    assert areas[1] / areas[0].max() == pytest.approx([0.5 / 0.6, 0.5 / 0.6])
    bars = [c for panel in panels for c in panel.containers if isinstance(c, BarContainer)]
    heights = [[bar.get_height() for bar in c.patches] for c in bars if len(c.patches) == 2]
    assert heights == [pytest.approx(row) for row in ([0.8, 0.2], [0.5, 0.5], [0.6, 0.4], [0.5, 0.5])]


def test_a_client_without_an_estimate_counts_in_the_truth() -> None:
    axes = fidelity_figure({"a": [1, 0], "b": [3, 0]}, {"a": [1, 1]})
    panels = root_figure(axes).axes
    bars = [c for panel in panels for c in panel.containers if isinstance(c, BarContainer)]
    heights = [[bar.get_height() for bar in c.patches] for c in bars if len(c.patches) == 2]
    assert heights == [pytest.approx(row) for row in ([0.25, 0.75], [1, 0], [1, 0], [0.5, 0.5])]


def test_rounds_have_one_named_line_per_client() -> None:
    records: list[dict[str, Any]] = [
        {"round": 1, "scores": {"client-10": 0.25, "client-2": 0.75}},
        {"round": 2, "scores": {"client-2": 1.0}},
        {"round": 3, "scores": None},
    ]
    axes = rounds_figure(records, "scores")
    assert [text.get_text() for text in axes.texts] == ["client-2", "client-10"]
    first, second = named_lines(axes)
    assert first == [(1, 0.75), (2, 1.0)]
    assert second[0] == (1, 0.25)
    assert np.isnan(second[1][1])


def test_clients_without_a_finite_score_are_not_drawn() -> None:
    nothing = {"a": float("nan"), "b": None, "c": float("inf")}
    records: list[dict[str, Any]] = [
        {"round": 1, "scores": {**nothing, "d": 0.5}},
        {"round": 2, "scores": {**nothing, "d": 0.25}},
        {"round": 3, "scores": nothing},
    ]
    axes = rounds_figure(records, "scores")
    assert [text.get_text() for text in axes.texts] == ["d"]
    assert named_lines(axes) == [[(1, 0.5), (2, 0.25)]]
    with pytest.raises(CelmError, match="cannot draw the scores"):
        rounds_figure(records[2:], "scores")


def test_accuracy_is_the_mean_with_a_band_over_seeds() -> None:
    runs: dict[str, dict[int, list[dict[str, Any]]]] = {
        "celm": {
            1: [{"round": 1, "accuracy": 0.2}, {"round": 2, "accuracy": 0.4}],
            2: [{"round": 1, "accuracy": 0.4}, {"round": 2}],
        },
        "fedavg": {1: [{"round": 1, "accuracy": 0.1}]},
    }
    axes = accuracy_figure(runs)
    assert named_lines(axes) == [
        [(1, pytest.approx(0.3)), (2, pytest.approx(0.4))],
        [(1, pytest.approx(0.1))],
    ]
    (band,) = axes.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    assert sorted({(x, round(y, 6)) for x, y in corners.tolist()}) == [(1, 0.2), (1, 0.4), (2, 0.4)]


def test_scores_are_bars_with_errors_and_the_equal_share() -> None:
    axes = scores_figure({"a": 0.7, "b": 0.2, "c": 0.1}, {"a": 0.05, "b": None, "c": 0.01}, flagged=["c"])
    (bars,) = [c for c in axes.containers if isinstance(c, BarContainer)]
    assert [bar.get_width() for bar in bars.patches] == [0.7, 0.2, 0.1]
    colours = [bar.get_facecolor() for bar in bars.patches]
    assert colours[0] == colours[1] != colours[2]
    (whiskers,) = [c for c in axes.collections if isinstance(c, LineCollection)]
    ends = [segment[:, 0].tolist() for segment in whiskers.get_segments()]
    assert ends == [pytest.approx(pair) for pair in ([0.65, 0.75], [0.2, 0.2], [0.09, 0.11])]
    dashed = [np.asarray(line.get_xdata()).tolist() for line in axes.lines if len(line.get_xdata()) == 2]
    assert dashed == [[1 / 3, 1 / 3]]


def test_importing_the_package_does_not_import_matplotlib() -> None:
    code = """if True:
        import sys, celm.report, celm.report.formatting
        assert "matplotlib" not in sys.modules
        assert all(callable(getattr(celm.report, name)) for name in celm.report.__all__)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_rates_are_drawn_over_sorted_thresholds() -> None:
    axes = threshold_figure([0, -2, -1], {"celm": [0.9, 0.0, 0.1]})
    assert named_lines(axes) == [[(-2, 0.0), (-1, 0.1), (0, 0.9)]]


def test_the_probe_grid_of_settings_shows_percent() -> None:
    axes = sensitivity_figure({(25, 0.1): 0.5, (50, 0.1): 0.75, (25, 0.01): 0.25, (50, 0.01): 0.6})
    assert [text.get_text() for text in axes.texts] == ["25.0", "50.0", "60.0", "75.0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["25", "50"]


@pytest.mark.parametrize("channels", [1, 3])
def test_each_probe_image_is_scaled_by_its_own_range(channels: int) -> None:
    image = np.arange(channels * 4.0).reshape(channels, 2, 2)
    axes = probe_figure(
        {"a": np.stack([image, 100 * image]), "b": np.zeros((2, channels, 2, 2))}, counts={"b": [0, 1]}
    )
    drawn = [np.asarray(i.get_array()) for i in axes.images]
    assert len(drawn) == 4
    assert (drawn[0].min(), drawn[0].max()) == (0, 1)
    assert np.allclose(drawn[0], drawn[1])
    assert (drawn[2] == 0.5).all()
    assert outlines(axes) == [(1, 1)]


def test_per_class_has_one_dot_per_method_and_tested_class() -> None:
    axes = per_class_figure({"celm": [0.5, None], "fedavg": [0.25, 1.0]})
    dots = [np.asarray(line.get_ydata(), dtype=float).tolist() for line in axes.lines]
    assert dots[0][0] == 0.5
    assert np.isnan(dots[0][1])
    assert dots[1] == [0.25, 1.0]


@pytest.mark.parametrize(
    ("figure", "shape"),
    [(name, shape) for name in FIGURES for shape in (SHAPES if name in BY_CLIENT_OR_CLASS else SHAPES[:1])],
)
def test_no_text_overlaps_another_or_leaves_the_figure(figure: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    names = [f"class {k}" if columns == 8 else str(k) for k in range(columns)]
    axes = every_figure([f"client-{i}" for i in range(rows)], names)[figure]()
    root = root_figure(axes)
    canvas: Any = FigureCanvasAgg(root)
    with figure_style():
        canvas.draw()
        texts = [t for t in root.findobj(Text) if t.get_visible() and t.get_text()]
        boxes = [t.get_window_extent() for t in texts]
        level = [t.get_window_extent().shrunk(0.95, 0.8) for t in texts if not t.get_rotation() % 90]
    assert len(texts) > 4
    for box, text in zip(boxes, texts, strict=True):
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= root.bbox.x1 + 1 and box.y1 <= root.bbox.y1 + 1
        assert inside, text.get_text()
    assert not [pair for pair in combinations(level, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("figure", FIGURES)
def test_equal_data_give_equal_bytes_and_names_are_not_interpreted(figure: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_figure(every_figure(HOSTILE, HOSTILE)[figure](), tmp_path / f"{name}.svg")
    content = (tmp_path / "a.svg").read_bytes()
    assert content == (tmp_path / "b.svg").read_bytes()
    assert b"<script>" not in content


def test_letters_that_the_font_lacks_come_from_another_font(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(fallbacks: tuple[str, ...], letter: str) -> str:
        monkeypatch.setattr(style, "FALLBACK_FONTS", fallbacks)
        style.font_families.cache_clear()
        return str(inline_svg(evidence_figure({letter: [1.0]}, ["0"]), "x", "y"))

    rare = "\u1d8d"  # in STIXGeneral, which matplotlib brings, and not in DejaVu Sans
    try:
        box = drawn((), rare)
        assert drawn(("STIXGeneral", "No Such Font"), rare) != box
        assert drawn(("STIXGeneral",), "a") == drawn((), "a")
        assert style.font_families() == ["DejaVu Sans"]
    finally:
        style.font_families.cache_clear()


def test_with_many_clients_only_the_outer_lines_are_named() -> None:
    clients = [f"client-{i}" for i in range(60)]
    records = [{"round": r, "client_weights": {c: i / 1770 for i, c in enumerate(clients)}} for r in (1, 2)]
    shown = {text.get_text() for text in rounds_figure(records).texts}
    assert len(shown) == 12
    assert {"client-0", "client-59"} <= shown


def test_names_are_spread_without_changing_their_order() -> None:
    placed = spread_labels([0.99, 1.0, 0.98, 0.1, 0.1], 0.1, 0.0, 1.0)
    assert np.argsort(placed, kind="stable").tolist() == [3, 4, 2, 0, 1]
    assert np.diff(sorted(placed)).min() >= 0.1 - 1e-9
    assert max(placed) <= 1.0


@pytest.mark.parametrize(
    "draw",
    [
        lambda: evidence_figure({}),
        lambda: evidence_figure({"a": [1.0], "b": [1.0, 2.0]}),
        lambda: evidence_figure({"a": [-1.0]}),
        lambda: evidence_figure({"a": [float("nan")]}),
        lambda: evidence_figure({"a": [1.0]}, ["x", "y"]),
        lambda: evidence_figure({"a": [1.0]}, counts={"a": [1, 2]}),
        lambda: fidelity_figure({"a": [1]}, {"a": [0]}),
        lambda: fidelity_figure({"a": [1, 1]}, {"a": [1]}),
        lambda: rounds_figure([{"round": 1, "client_weights": None}]),
        lambda: accuracy_figure({"celm": {1: [{"round": 1}]}}),
        lambda: threshold_figure([1, 2], {"celm": [0.1]}),
        lambda: sensitivity_figure({}),
        lambda: sensitivity_figure({(1, 0.1): 0.5, (2, 0.2): 0.5}),
        lambda: probe_figure({"a": np.zeros((2, 7))}),
        lambda: probe_figure({}),
        lambda: scores_figure({}),
        lambda: scores_figure({"a": float("nan")}),
        lambda: per_class_figure({"a": [0.1], "b": [0.1, 0.2]}),
    ],
)
def test_invalid_data_are_refused(draw: Callable[[], Axes]) -> None:
    with pytest.raises(CelmError, match="cannot draw"):
        draw()
