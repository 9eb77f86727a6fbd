"""Server side: client models -> weights -> new global model. One method per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.rules.rule import AnyRule

rules: Registry[AnyRule] = Registry(
    "rule",
    {
        "celm": "celm.rules.celm:Celm",
        "fedavg": "celm.rules.fedavg:FedAvg",
        "standalone": "celm.rules.standalone:Standalone",
    },
)
