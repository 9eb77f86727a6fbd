"""Client side: what a client minimises. One method per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.registry import Registry

if TYPE_CHECKING:
    from celm.objectives.objective import AnyObjective

objectives: Registry[AnyObjective] = Registry("objective", {"plain": "celm.objectives.plain:Plain"})
