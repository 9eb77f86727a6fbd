"""Style all figures alike, without changing matplotlib's global state."""

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

# Okabe and Ito's palette, which colour-blind readers can distinguish; the pale yellow comes last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
INK = "#22262B"
MUTED = "#6B7280"
LINE = "#E3E6EA"

FALLBACK_FONTS = (
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
"""Fonts for letters that DejaVu Sans lacks; only installed ones are used."""

_RC_PARAMS: Any = {
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

# Files contain no times or versions, so equal figures give equal bytes.
FILE_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Use matplotlib's defaults with celm's style inside the block, and restore the user's settings after it."""
    with mpl.rc_context(), warnings.catch_warnings():
        # A client may have any name. A letter that no font has is drawn as a box, without a warning.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_RC_PARAMS)
        mpl.rcParams["font.family"] = font_families()
        yield


@cache
def font_families() -> list[str]:
    """Return the fonts in order. DejaVu Sans comes with matplotlib, so its letters look the same everywhere."""
    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]


def root_figure(axes: Axes) -> Figure:
    """Return the figure that contains `axes`."""
    figure = axes.get_figure(root=True)
    if not isinstance(figure, Figure):
        raise TypeError("the axes do not belong to a figure")
    return figure


def save_figure(axes: Axes, path: Path | str) -> None:
    """Write the figure of `axes` atomically, as PNG, SVG or PDF by the suffix."""
    path = Path(path)
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in FILE_METADATA:
        raise CelmError(f"cannot save the figure: {path}", "use a name that ends in .png, .svg or .pdf")
    content = io.BytesIO()
    with figure_style():
        root_figure(axes).savefig(content, format=file_format, metadata=FILE_METADATA[file_format])
    write_bytes(path, content.getvalue())
