"""Server side: client models -> weights -> new global model. One method per file.

`rules` is the registry. `celm.rules.rule` defines what a rule is, `celm.rules.messages` what server and clients
exchange. `celm.rules.robust` contains filters and aggregators that work with any rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.rules.rule import AnyRule

__all__ = ["rules"]

rules: Registry[AnyRule] = Registry(
    "rule",
    {
        "celm": "celm.rules.celm:Celm",
        "fedavg": "celm.rules.fedavg:FedAvg",
        "fednova": "celm.rules.fednova:FedNova",
        "shapfed": "celm.rules.shapfed:ShapFed",
        "cgsv": "celm.rules.cgsv:Cgsv",
        "rffl": "celm.rules.rffl:Rffl",
        "cffl": "celm.rules.cffl:Cffl",
        "fedce": "celm.rules.fedce:FedCe",
        "coast": "celm.rules.coast:Coast",
        "in_run": "celm.rules.in_run:InRun",
        "singleton": "celm.rules.singleton:Singleton",
        "leave_one_out": "celm.rules.leave_one_out:LeaveOneOut",
        "shapley": "celm.rules.shapley:Shapley",
        "gtg_shapley": "celm.rules.gtg_shapley:GtgShapley",
        "tmc_shapley": "celm.rules.tmc_shapley:TmcShapley",
        "standalone": "celm.rules.standalone:Standalone",
    },
)
