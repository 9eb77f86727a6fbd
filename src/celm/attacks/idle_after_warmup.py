"""A client that works while it is judged, and then rides free.

    w_i = what it trained                                                  in its honest rounds
    w_i = w_delivered + strength * mean|w_delivered - w_before| * N(0, 1)  afterwards, as in `copy_global`

Weights that freeze after a warm-up reward it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Upload
from celm.attacks.copy_global import CopyGlobal
from celm.method.weights import warmup_rounds
from celm.models.state import StateDict


@dataclass(frozen=True)
class IdleAfterWarmup(CopyGlobal):
    """Honest while clients are judged; then returns what it was sent, with noise by strength."""

    honest: Annotated[int, Field(ge=0)] | None = None
    """First rounds of honest work; by default 5 % of all, what CELM probes unless told otherwise."""

    def trains(self, number: int, rounds: int) -> bool:
        return number <= (warmup_rounds(rounds, 0.05) if self.honest is None else self.honest)

    def upload(self, upload: Upload) -> StateDict:
        if self.trains(upload.number, upload.federation.rounds):
            return upload.trained
        return super().upload(upload)
