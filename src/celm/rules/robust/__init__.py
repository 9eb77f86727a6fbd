"""Robust aggregation for any rule.

Filters change or exclude updates before the rule computes weights; aggregators replace the weighted mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.rules.robust.aggregator import RobustAggregator
    from celm.rules.robust.filter import Filter

__all__ = ["aggregators", "filters"]

filters: Registry[Filter] = Registry(
    "filter",
    {
        "clip_norm": "celm.rules.robust.clip_norm:ClipNorm",
        "krum": "celm.rules.robust.krum:Krum",
    },
)

aggregators: Registry[RobustAggregator] = Registry(
    "aggregator",
    {
        "median": "celm.rules.robust.median:Median",
        "trimmed_mean": "celm.rules.robust.trimmed_mean:TrimmedMean",
    },
)
