"""Gather the finished runs of a study or comparison into one small file: python results/collect.py FOLDER OUT.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

KEPT = ("seed", "accuracy", "balanced_accuracy", "rare_class_accuracy", "per_class", "weights", "seconds")

if __name__ == "__main__":
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    found = {}
    cells = folder / "cells" if (folder / "cells").is_dir() else folder
    for path in sorted(cells.glob("*/result.json")):
        result = json.loads(path.read_text())
        settings = (path.parent / "settings.toml").read_text()
        found[path.parent.name] = {**{name: result[name] for name in KEPT}, "settings": settings}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} runs in {out}")
