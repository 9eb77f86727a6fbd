"""Draw the pictures of the README and of pages, for light and dark pages: `python docs/pictures.py`.

The shares are those of the federation that `make demo` runs; the correlations are those of results/trust.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

import celm
from celm.base.files import write_text
from celm.report import save_figure, shares_figure
from celm.report.style import INK, LINE, MUTED, PALETTE, figure_style

ASSETS = Path(__file__).parent / "assets"
ESTIMATORS = Path(__file__).parents[1] / "results/trust/head/table.json"
NAMES = {
    "head": "head evidence",
    "calibrated": "CELM, calibrated evidence",
    "celm": "CELM",
    "data size": "reported sizes (if true)",
    "fedce": "FedCE",
    "rffl": "RFFL",
    "gtg_shapley": "GTG-Shapley",
    "shapfed": "ShapFed",
    "cgsv": "CGSV",
    "cffl": "CFFL",
}
"""Column of the table to its name in the picture, best first."""
DARK = {
    INK: "#E6EDF3",
    MUTED: "#9DA7B3",
    LINE: "#30363D",
    "#0B4F8A": "#58A6FF",
    "#C62828": "#FF7B72",
    "#FFFFFF": "#0D1117",
}
"""Colour on light pages to colour on dark pages."""


def draw_shares() -> Axes:
    """Draw each client's share of the evidence, with the classes that clients truly hold outlined."""
    with tempfile.TemporaryDirectory() as folder:
        run = celm.run(
            celm.Experiment(
                split={"name": "frm", "kind": "copy_global"}, train={"batch": 32}, run={"rounds": 60}
            ),
            Path(folder) / "run",
        )
    title = "What each client's model has learnt: its share of the evidence"
    return shares_figure(run.evidence, run.metrics["classes"], run.metrics["counts"], title=title)


def correlations() -> dict[str, float]:
    """Return the mean correlation of each estimator with exact Shapley values, over all federations."""
    found = json.loads(ESTIMATORS.read_text(encoding="utf-8"))["pearson"]["all rows"]
    return {
        column: found[column]["mean"] for column in sorted(NAMES, key=lambda column: -found[column]["mean"])
    }


def draw_correlations() -> Axes:
    """Draw the correlations as bars, best on top."""
    values = correlations()
    with figure_style():
        _, axes = plt.subplots(figsize=(5.6, 2.7), layout="constrained")
        axes.set_title("Correlation with exact Shapley values, 57 federations")
        ours = ("head", "calibrated", "celm")
        colours = [PALETTE[0] if column in ours else MUTED for column in values]
        lengths = [max(0.0, value) for value in values.values()]
        bars = axes.barh([NAMES[column] for column in values], lengths, color=colours)
        axes.bar_label(bars, [f"{length:.2f}" for length in lengths], padding=3, color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        axes.spines[["bottom", "left"]].set_visible(False)
        axes.tick_params(length=0)
    return axes


def draw_record() -> Axes:
    """Draw the tree over the lines of a record, its signed head, and the members that keep it."""
    with figure_style():
        _, axes = plt.subplots(figsize=(7.2, 3.3), layout="constrained")
        axes.set_axis_off()
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 46)

        def box(
            x: float, y: float, width: float, text: str, colour: str = LINE, weight: str = "normal"
        ) -> None:
            style = {"boxstyle": "round,pad=0.3,rounding_size=0.8", "facecolor": "none", "edgecolor": colour}
            axes.add_patch(FancyBboxPatch((x - width / 2, y - 1.6), width, 3.2, linewidth=1.2, **style))
            axes.text(x, y, text, ha="center", va="center", color=INK, weight=weight)

        def line(start: tuple[float, float], end: tuple[float, float], arrow: str = "-") -> None:
            properties = {"arrowstyle": arrow, "color": MUTED, "linewidth": 1.0}
            axes.annotate("", end, start, arrowprops=properties)

        for number, x in enumerate((12, 36, 60), start=1):
            axes.text(x, 2.0, f"line of round {number}", ha="center", color=MUTED)
            for place, name in zip((-7.5, 0, 7.5), ("round", "north", "south"), strict=True):
                own = name == "north" and number == 2
                box(x + place, 7, 5.6, name, PALETTE[0] if own else LINE, "bold" if own else "normal")
                line((x + place, 9.2), (x, 14.8))
            box(x, 17, 5, "hash")
        line((12, 19.2), (23, 24.8))
        line((36, 19.2), (25, 24.8))
        box(24, 27, 5, "hash")
        line((24, 29.2), (40, 34.8))
        line((60, 19.2), (44, 34.8))
        box(42, 37, 16, "root after round 3", PALETTE[0])
        line((51, 37), (63.5, 37), "->")
        box(72, 37, 15, "head, signed", PALETTE[0], "bold")
        for y, name in ((27, "north"), (21, "south"), (15, "east")):
            line((76, 34.8), (84, y + 1.2), "->")
            box(91.5, y, 13.5, f"{name} keeps it")
        axes.text(92, 31.5, "with round 4", ha="center", color=MUTED)
        note = "a proof for north in round 2: its leaf, and the hashes beside its way to the root"
        axes.text(3, 43.5, note, va="center", color=PALETTE[0])
    return axes


def save_light_and_dark(axes: Axes, name: str) -> None:
    light = ASSETS / f"{name}-light.svg"
    save_figure(axes, light)
    text = light.read_text(encoding="utf-8")
    for colour, dark_colour in DARK.items():
        text = text.replace(colour.lower(), dark_colour.lower()).replace(colour, dark_colour)
    write_text(ASSETS / f"{name}-dark.svg", text)


def main() -> None:
    save_light_and_dark(draw_shares(), "readme-evidence")
    save_light_and_dark(draw_correlations(), "readme-shapley")
    save_light_and_dark(draw_record(), "record")


if __name__ == "__main__":
    main()
