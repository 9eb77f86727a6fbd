"""Put the measuring scripts of `results/trust` on the path, so that tests can import their shared modules."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "results" / "trust"))
