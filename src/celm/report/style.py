"""One look for all figures, applied locally: nothing of matplotlib's global state is left changed."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from celm.base.errors import CelmError
from celm.base.files import write_bytes

# Okabe and Ito's colours, told apart by colour-blind people too; the pale yellow last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
INK = "#22262B"
MUTED = "#6B7280"
LINE = "#E3E6EA"

FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Thai",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Nirmala UI",
    "Leelawadee UI",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
)
"""For letters that DejaVu Sans lacks, those of these fonts that are installed."""

LOOK: Any = {
    "font.size": 8.5,
    "text.color": INK,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "celm",  # equal figures give equal bytes
}

# No times or versions in the files: equal figures give equal bytes.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib's defaults with celm's look, whatever the user's own settings, until the block ends."""
    with mpl.rc_context(), warnings.catch_warnings():
        # A letter that no font has (a client may have any name) is drawn as a box: nothing to warn of.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(LOOK)
        mpl.rcParams["font.family"] = families()
        yield


@cache
def families() -> list[str]:
    """DejaVu Sans first, which comes with matplotlib: what it can write looks the same on every machine."""
    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in FALLBACKS if name in installed)]


def plain(text: str, longest: int = 24) -> str:
    """A name as one short line of visible characters.

    >>> plain("ward\\n7")
    'ward 7'
    >>> plain("a" * 30, longest=5)
    'aaaa…'
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def figure_of(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    if not isinstance(figure, Figure):
        raise TypeError("the axes belong to no figure")
    return figure


def save_figure(axes: Axes, path: Path | str) -> None:
    """Save the figure of `axes` as PNG, SVG or PDF, by the suffix, wholly or not at all."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in METADATA:
        raise CelmError(f"cannot save the figure as {path}", "the name must end in .png, .svg or .pdf")
    content = io.BytesIO()
    with look():
        figure_of(axes).savefig(content, format=kind, metadata=METADATA[kind])
    write_bytes(path, content.getvalue())
