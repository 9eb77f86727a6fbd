"""Client side: what a client minimises. One method per file.

`objectives` is the registry. `celm.objectives.objective` defines what an objective is; `celm.objectives.local_sgd`
trains a client with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.objectives.objective import AnyObjective

__all__ = ["objectives"]

objectives: Registry[AnyObjective] = Registry(
    "objective",
    {
        "plain": "celm.objectives.cross_entropy:Plain",
        "fedprox": "celm.objectives.fedprox:FedProx",
        "moon": "celm.objectives.moon:Moon",
        "fedrs": "celm.objectives.fedrs:FedRs",
        "feduv": "celm.objectives.feduv:FedUv",
        "scaffold": "celm.objectives.scaffold:Scaffold",
        "feddyn": "celm.objectives.feddyn:FedDyn",
        "fedsam": "celm.objectives.fedsam:FedSam",
        "fedsol": "celm.objectives.fedsol:FedSol",
        "fedgela": "celm.objectives.fedgela:FedGela",
        "fedaws": "celm.objectives.fedaws:FedAws",
    },
)
