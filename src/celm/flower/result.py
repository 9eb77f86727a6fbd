"""The result of a live federation: Flower's own, with contributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.serverapp.strategy import Result


@dataclass(repr=False)
class ContributionResult(Result):
    contributions: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Round to client to weight, over all clients seen until then."""
    earned: Mapping[str, float] = field(default_factory=dict)
    """Client to the mean over all rounds of its contribution, 0 in rounds without a usable update."""
    evidence: Mapping[int, Mapping[str, list[float]]] = field(default_factory=dict)
    """Round to client to evidence by class, for the probed rounds."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """One record per round: selected clients, received updates, exclusions with reasons."""
