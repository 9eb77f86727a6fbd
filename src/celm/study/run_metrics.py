"""The metrics that a table may have: name to a function of a run. A metric is None if the run does not have it."""

from __future__ import annotations

from collections.abc import Callable

from celm.base.errors import CelmError, suggest_name
from celm.metrics.fairness import gini
from celm.metrics.fidelity import Fidelity, fidelity, fidelity_to_uniform
from celm.metrics.free_riders import Detection, detect_free_riders
from celm.runs.run import Run

_MetricFn = Callable[[Run], float | None]

ACCURACY_METRICS = ("accuracy", "balanced_accuracy", "rare_class_accuracy")
"""Displayed in percent; other metrics are displayed as they are, with three decimals."""


def _from_result(name: str) -> _MetricFn:
    def compute(run: Run) -> float | None:
        value: float | None = run.metrics[name]
        return value

    return compute


def _compute_detection(run: Run) -> Detection:
    """Detect free-riders from the client weights of all rounds (smoothed, later frozen)."""
    client_weights = [
        record["client_weights"] for record in run.rounds if record["client_weights"] is not None
    ]
    return detect_free_riders(client_weights, run.metrics["free_riders"])


def _estimate_fidelity(run: Run) -> Fidelity | None:
    """Compare the evidence of the last probed round with the true class distribution."""
    return None if run.evidence is None else fidelity(run.metrics["counts"], run.evidence)


def _uniform_fidelity(run: Run) -> Fidelity | None:
    return fidelity_to_uniform(run.metrics["counts"])


def _resource_metric(name: str) -> _MetricFn:
    def compute(run: Run) -> float | None:
        from celm.study import resource_metrics  # imports torch, which `celm list` does not need

        value: float | None = getattr(resource_metrics, name)(run)
        return value

    return compute


METRICS: dict[str, _MetricFn] = {
    **{name: _from_result(name) for name in ACCURACY_METRICS},
    "auroc": lambda run: _compute_detection(run).auroc,
    "fpr": lambda run: _compute_detection(run).fpr,
    "tpr": lambda run: _compute_detection(run).tpr,
    "jsd": lambda run: getattr(_estimate_fidelity(run), "jensen_shannon", None),
    "emd": lambda run: getattr(_estimate_fidelity(run), "emd", None),
    "hellinger": lambda run: getattr(_estimate_fidelity(run), "hellinger", None),
    "jsd_uniform": lambda run: getattr(_uniform_fidelity(run), "jensen_shannon", None),
    "emd_uniform": lambda run: getattr(_uniform_fidelity(run), "emd", None),
    "hellinger_uniform": lambda run: getattr(_uniform_fidelity(run), "hellinger", None),
    "probed_rounds": lambda run: float(sum(record["evidence"] is not None for record in run.rounds)),
    "gini": lambda run: gini(run.weights),
    "upload_megabytes": _resource_metric("upload_megabytes"),
    "download_megabytes": _resource_metric("download_megabytes"),
    "probe_megabytes": _resource_metric("probe_megabytes"),
    "server_seconds": _resource_metric("server_seconds"),
}

COST_METRICS = {"upload_megabytes", "download_megabytes", "probe_megabytes", "server_seconds"}
"""Costs of a round, summed over clients; see `celm.study.resource_metrics`."""
LOWER_IS_BETTER = {"fpr", "jsd", "emd", "hellinger", "probed_rounds", *COST_METRICS}
UNRANKED_METRICS = {"gini"}
"""Neither higher nor lower is better."""
WALL_CLOCK_METRICS = {"server_seconds"}
"""They differ between repetitions, so they have their own table. All others repeat byte for byte."""


def compute_metric(name: str, run: Run) -> float | None:
    return METRICS[check_metric(name)](run)


def check_metric(name: str) -> str:
    if name not in METRICS:
        raise CelmError(f"unknown metric '{name}'", suggest_name(name, METRICS))
    return name
