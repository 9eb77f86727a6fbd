"""What each client of a federation contributed, class by class, without seeing any data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celm.auditing.audit import audit as audit
    from celm.auditing.result import Audit as Audit
    from celm.base.errors import CelmError as CelmError
    from celm.engines.launch import resume as resume
    from celm.engines.launch import run as run
    from celm.federation.experiment import Experiment as Experiment
    from celm.federation.run import Run as Run
    from celm.method.evidence import evidence as evidence
    from celm.method.evidence import scores as scores
    from celm.method.evidence import shares as shares
    from celm.method.probe import Probe as Probe
    from celm.method.probe import probe as probe

__version__ = "0.1.0"

# Loaded on first use: `import celm` and the command line stay light until torch is needed.
HOMES = {
    "Audit": "celm.auditing.result",
    "CelmError": "celm.base.errors",
    "Experiment": "celm.federation.experiment",
    "Probe": "celm.method.probe",
    "Run": "celm.federation.run",
    "audit": "celm.auditing.audit",
    "evidence": "celm.method.evidence",
    "probe": "celm.method.probe",
    "resume": "celm.engines.launch",
    "run": "celm.engines.launch",
    "scores": "celm.method.evidence",
    "shares": "celm.method.evidence",
}

__all__ = [
    "Audit",
    "CelmError",
    "Experiment",
    "Probe",
    "Run",
    "__version__",
    "audit",
    "evidence",
    "probe",
    "resume",
    "run",
    "scores",
    "shares",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'celm' has no attribute '{name}'")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value
