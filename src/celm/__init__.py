"""Measure what each client of a federation contributed, class by class, without seeing any data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celm.auditing.audit import audit as audit
    from celm.auditing.result import Audit as Audit
    from celm.base.errors import CelmError as CelmError
    from celm.core.evidence import evidence as evidence
    from celm.core.evidence import scores as scores
    from celm.core.evidence import shares as shares
    from celm.core.head_evidence import head_evidence as head_evidence
    from celm.core.probe import ProbeResult as ProbeResult
    from celm.core.probe import probe as probe
    from celm.experiment.config import Experiment as Experiment
    from celm.experiment.register import register as register
    from celm.results.federation import Federation as Federation
    from celm.results.load import load as load
    from celm.runs.game import as_game as as_game
    from celm.runs.run import Run as Run
    from celm.runs.runner import resume as resume
    from celm.runs.runner import run as run
    from celm.study.compare import compare as compare
    from celm.study.grid_result import Comparison as Comparison
    from celm.study.grid_result import Study as Study

__version__ = "0.1.0"

# Loaded on first use, so that `import celm` and the command line do not import torch before they need it.
_LAZY_MODULES = {
    "Audit": "celm.auditing.result",
    "CelmError": "celm.base.errors",
    "Comparison": "celm.study.grid_result",
    "Experiment": "celm.experiment.config",
    "Federation": "celm.results.federation",
    "ProbeResult": "celm.core.probe",
    "Run": "celm.runs.run",
    "Study": "celm.study.grid_result",
    "as_game": "celm.runs.game",
    "audit": "celm.auditing.audit",
    "compare": "celm.study.compare",
    "evidence": "celm.core.evidence",
    "head_evidence": "celm.core.head_evidence",
    "load": "celm.results.load",
    "probe": "celm.core.probe",
    "register": "celm.experiment.register",
    "resume": "celm.runs.runner",
    "run": "celm.runs.runner",
    "scores": "celm.core.evidence",
    "shares": "celm.core.evidence",
}

__all__ = [
    "Audit",
    "CelmError",
    "Comparison",
    "Experiment",
    "Federation",
    "ProbeResult",
    "Run",
    "Study",
    "__version__",
    "as_game",
    "audit",
    "compare",
    "evidence",
    "head_evidence",
    "load",
    "probe",
    "register",
    "resume",
    "run",
    "scores",
    "shares",
    "study",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in {*_LAZY_MODULES, "study"}:
        raise AttributeError(f"module 'celm' has no attribute '{name}'")
    if name == "study":  # the package itself can be called
        return import_module("celm.study")
    value = getattr(import_module(_LAZY_MODULES[name]), name)
    globals()[name] = value
    return value
