"""A timer for the stages of a round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class StageTimer:
    """A timer of named stages; `seconds` lists them in the order in which they ended."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure the body of a `with` statement as `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = round(time.perf_counter() - start, 6)

    def format_shares(self) -> str:
        """Return the stages as percentages of their sum.

        >>> StageTimer({"wait": 3.0, "merge": 1.0}).format_shares()
        'wait 75.0 %, merge 25.0 %'
        """
        total = sum(self.seconds.values()) or 1.0
        return ", ".join(f"{stage} {100 * seconds / total:.1f} %" for stage, seconds in self.seconds.items())
