"""What a combine is: models and a rule's weights to one model, in place of the weighted mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from celm.base.registry import Configurable
from celm.models.state import StateDict


@dataclass(frozen=True)
class Combine(Configurable, ABC):
    """A subclass is a frozen dataclass; its fields are settings (`combine.*`).

    With equal weights it must be the method as published; integer and boolean buffers come from the heaviest
    client, as in the mean.
    """

    @abstractmethod
    def __call__(self, states: Sequence[StateDict], weights: Sequence[float]) -> StateDict: ...
