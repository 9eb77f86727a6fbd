"""How one client trains where it does not train as all the others do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Habits:
    epochs: int | None = None
    """Local epochs; None is as agreed."""
    rate: float = 1.0
    """What the agreed learning rate is multiplied by."""
    smoothing: float = 0.0
    """ε of smoothed labels; 0 is labels as they are."""
