"""Flags of a round: clients that their operator should look at, each with a reason.

excluded      the update was not used
unchanged     the update is the model that the client was sent
idle          the update shows no training
nonfinite     a logit of the model is not finite
no_evidence   the model shows evidence for no class
clipped       the filter cut the update to less than a fifth of its norm
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from celm.base.client_order import natural_sorted
from celm.rules.messages import ClientUpdate, ServerMessage

MIN_CLIP_FACTOR = 0.2
"""A client whose update was multiplied by less is flagged."""

UNCHANGED = "returned the model that it was sent"
_DIAGNOSTIC_REASONS = {
    "idle": "its update shows no training",
    "nonfinite": "a logit of its model is not finite",
    "no_evidence": "its model shows evidence for no class",
}

Flags = dict[str, dict[str, str]]
"""Client to kind of flag to reason."""


def unchanged_clients(
    messages: Mapping[str, ServerMessage], updates: Mapping[str, ClientUpdate]
) -> list[str]:
    """Return the clients whose update equals, to the last bit, the model that they were sent."""
    return [
        name
        for name, update in updates.items()
        if all(torch.equal(tensor, messages[name].model[key]) for key, tensor in update.model.items())
    ]


def round_flags(
    unchanged: list[str],
    diagnostics: Mapping[str, Any],
    excluded: Mapping[str, str],
    clip_factors: Mapping[str, float],
) -> Flags:
    """Return the flags of a round, in client order."""
    flags: Flags = {}
    clipped = {
        name: f"its update was clipped to {100 * factor:.2g} % of its norm"
        for name, factor in clip_factors.items()
        if factor < MIN_CLIP_FACTOR
    }
    for name, reason in excluded.items():
        flags.setdefault(name, {})["excluded"] = reason
    for name in unchanged:
        flags.setdefault(name, {})["unchanged"] = UNCHANGED
    for kind, reason in _DIAGNOSTIC_REASONS.items():
        for name in diagnostics.get(kind) or ():
            cause = f"{reason}, after {clipped[name]}" if name in clipped else reason
            flags.setdefault(name, {})[kind] = cause
    for name, reason in clipped.items():
        flags.setdefault(name, {})["clipped"] = reason
    return {name: flags[name] for name in natural_sorted(flags)}
