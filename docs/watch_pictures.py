"""Draw what `celm watch` shows in terminals of 80 and 160 columns: `python docs/watch_pictures.py`.

The record is that of results/flower/consortium.py, or of the state folder that is given as argument.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from celm.base.files import write_text
from celm.cli.progress_view import EtaEstimator
from celm.cli.watch import render
from celm.operations.snapshot import snapshot_folder

ASSETS = Path(__file__).parent / "assets"
RECORD = Path(__file__).parents[1] / "results/flower/consortium"
WIDTHS = (80, 160)
HEIGHT = 24


def draw_watch(folder: Path, width: int) -> str:
    """Return the view of a folder in a terminal of `width` columns, as SVG."""
    console = Console(
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=HEIGHT,
        color_system="truecolor",
    )
    with contextlib.chdir(folder.resolve().parent):
        console.print(render(snapshot_folder(Path(folder.name)), EtaEstimator(), console))
    svg = console.export_svg(
        title=f"celm watch {folder.name}", theme=SVG_EXPORT_THEME, unique_id=f"watch-{width}"
    )
    # The page loads nothing from elsewhere: no fonts of rich's.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "'DejaVu Sans Mono', 'Fira Code', monospace")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD
    for width in WIDTHS:
        write_text(ASSETS / f"watch-{width}.svg", draw_watch(folder, width))


if __name__ == "__main__":
    main()
