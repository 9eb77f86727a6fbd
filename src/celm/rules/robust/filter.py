"""What a filter is: a round in, a round out, and who was left out for what reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from celm.base.registry import Configurable
from celm.rules.exchange import Round


@dataclass(frozen=True)
class Filtered:
    round: Round
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Client to why its update does not count."""


@dataclass(frozen=True)
class Filter(Configurable, ABC):
    """A subclass is a frozen dataclass; its fields are settings (`filter.*`)."""

    @abstractmethod
    def apply(self, round: Round) -> Filtered: ...
