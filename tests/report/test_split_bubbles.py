"""The split figure: bubbles by area, totals at the margins, any name drawn as it is."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.text import Text

from celm.base.errors import CelmError
from celm.report import save_figure, split_figure
from celm.report.style import figure_style, root_figure

COUNTS = {"client-0": [10, 0, 40], "client-1": [0, 20, 0]}
HOSTILE = ["$\\frac{", "<script>&\n\u202e病院", "_^{$$}", "x" * 99, "", "%s\\", "-->"]
SHAPES = [(1, 1), (5, 10), (6, 8), (20, 10), (5, 47), (300, 3)]


def sizes(axes: Axes) -> list[float]:
    return [float(size) for size in axes.collections[-1].get_sizes()]  # type: ignore[attr-defined]


def bars(axes: Axes) -> list[BarContainer]:
    """Return the bars at the top, then those at the right."""
    return [c for other in root_figure(axes).axes for c in other.containers if isinstance(c, BarContainer)]


def test_a_bubble_for_every_cell_with_samples_by_area() -> None:
    axes = split_figure(COUNTS)
    assert axes.collections[-1].get_offsets().tolist() == [[0, 0], [2, 0], [1, 1]]  # type: ignore[union-attr]
    area = np.array(sizes(axes))
    assert area / area.max() == pytest.approx([0.25, 1.0, 0.5])


def test_the_margins_are_totals_per_class_and_per_client() -> None:
    top, right = bars(split_figure(COUNTS))
    assert [bar.get_height() for bar in top.patches] == [10, 20, 40]
    assert [bar.get_width() for bar in right.patches] == [50, 20]


def settings() -> dict[str, object]:
    # Without the backend, which matplotlib chooses on first access.
    return {key: mpl.rcParams[key] for key in mpl.rcParams if key != "backend"}


def test_clients_go_down_and_classes_across() -> None:
    axes = split_figure(COUNTS, class_names=["cat", "dog", "owl"], title="who holds what")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog", "owl"]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(COUNTS)
    low, high = axes.get_ylim()
    assert low > high


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("long", [False, True])
def test_no_text_overlaps_another_or_leaves_the_figure(shape: tuple[int, int], long: bool) -> None:
    rows, columns = shape
    table = np.random.RandomState(0).randint(0, 6000, shape)
    names = [f"class number {k}" if long else str(k) for k in range(columns)]
    axes = split_figure({f"client-{i}": table[i].tolist() for i in range(rows)}, names, title="a title")
    figure = root_figure(axes)
    canvas: Any = FigureCanvasAgg(figure)
    with figure_style():
        canvas.draw()
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        boxes = [text.get_window_extent() for text in texts if not text.get_rotation() % 90]
        every = [text.get_window_extent() for text in texts]
    assert len(texts) > columns / 2
    for box in every:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    if rows < 100:
        assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_any_name_is_drawn_and_not_interpreted(tmp_path: Path, suffix: str) -> None:
    axes = split_figure({name: [1, 2] for name in HOSTILE}, class_names=HOSTILE[:2], title=HOSTILE[0])
    path = tmp_path / f"split.{suffix}"
    save_figure(axes, path)
    content = path.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    assert b"<script>" not in content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_equal_splits_give_equal_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        save_figure(split_figure(COUNTS, title="twice"), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_the_users_matplotlib_settings_neither_matter_nor_change(tmp_path: Path) -> None:
    save_figure(split_figure(COUNTS), tmp_path / "plain.svg")
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "none", "figure.dpi": 300, "axes.grid": True}):
        before = settings()
        save_figure(split_figure(COUNTS), tmp_path / "other.svg")
        assert settings() == before
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_a_federation_without_samples_can_be_drawn(tmp_path: Path) -> None:
    axes = split_figure({"a": [0, 0], "b": [0, 0]})
    assert not sizes(axes)
    save_figure(axes, tmp_path / "empty.png")


@pytest.mark.parametrize(
    ("counts", "names"),
    [
        ({}, None),
        ({"a": []}, None),
        ({"a": [1], "b": [1, 2]}, None),
        ({"a": [-1]}, None),
        ({"a": [1]}, ["x", "y"]),
    ],
)
def test_an_invalid_table_is_refused(counts: dict[str, list[int]], names: list[str] | None) -> None:
    with pytest.raises(CelmError, match="cannot draw the split"):
        split_figure(counts, names)


@pytest.mark.parametrize("name", ["split.bmp", "split", "split.svgz"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CelmError, match=r"\.png, \.svg or \.pdf"):
        save_figure(split_figure(COUNTS), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CelmError, match="cannot write"):
        save_figure(split_figure(COUNTS), tmp_path / "no" / "split.png")
