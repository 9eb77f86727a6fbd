"""The interface of filters: a round in, a round and the excluded clients out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from celm.base.registry import Configurable
from celm.rules.messages import RoundData


@dataclass(frozen=True)
class FilterResult:
    """The filtered round and the clients whose updates it excludes."""

    round: RoundData
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Excluded client to reason."""
    clip_factors: Mapping[str, float] = field(default_factory=dict)
    """Client to the factor by which its update was shortened, for clients whose update was."""


@dataclass(frozen=True)
class Filter(Configurable, ABC):
    """Base of filters: a frozen dataclass whose fields are settings (`filter.*`)."""

    @abstractmethod
    def apply(self, round: RoundData) -> FilterResult:
        """Change or exclude updates of a round."""
