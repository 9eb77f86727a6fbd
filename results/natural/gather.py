"""Collect the runs of both studies: python results/natural/gather.py natural-truth natural-people.

The runs of the methods go to one file for each dataset, the worth of all coalitions to truth.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from celm.base.files import read_text, write_text

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from collect import collect_run, format_runs  # noqa: E402 - a script of the folder above

if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        for dataset in ("heart", "fsdd", "hapt"):
            cells = [path.parent for path in sorted(folder.glob(f"cells/{dataset}_*/result.json"))]
            runs = {cell.name: collect_run(cell, False) for cell in cells if "-clients_" not in cell.name}
            if runs:
                write_text(HERE / f"{dataset}.json", format_runs(runs))
                print(f"{len(runs)} runs in {dataset}.json")
        if (folder / "truth.json").exists():
            write_text(HERE / "truth.json", read_text(folder / "truth.json"))
