"""What a federation found: Flower's own result, and who contributed what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.serverapp.strategy import Result


@dataclass(repr=False)
class ContributionResult(Result):
    contributions: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Round to client to weight, over every client known by then."""
    evidence: Mapping[int, Mapping[str, list[float]]] = field(default_factory=dict)
    """Round to client to evidence by class, for the rounds that were probed."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """One record a round: who was asked, what came, who was excluded and why."""
