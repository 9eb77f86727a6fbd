"""Robust aggregation, for any rule: filters act on the updates before they are weighed, combines replace the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.rules.robust.combine import Combine
    from celm.rules.robust.filter import Filter

filters: Registry[Filter] = Registry(
    "filter",
    {
        "clip_norm": "celm.rules.robust.clip_norm:ClipNorm",
        "krum": "celm.rules.robust.krum:Krum",
    },
)

combines: Registry[Combine] = Registry(
    "combine",
    {
        "median": "celm.rules.robust.median:Median",
        "trimmed_mean": "celm.rules.robust.trimmed_mean:TrimmedMean",
    },
)
