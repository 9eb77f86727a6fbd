"""What a table may show of a run: a name, and a number from its folder (None where the run has none)."""

from __future__ import annotations

from collections.abc import Callable

from celm.base.errors import CelmError, nearest
from celm.federation.run import Run
from celm.metrics.fairness import gini
from celm.metrics.fidelity import Fidelity, against_uniform, fidelity
from celm.metrics.free_riders import Detection, detect

Measure = Callable[[Run], float | None]

ACCURACIES = ("accuracy", "balanced_accuracy", "rare_class_accuracy")
"""Shown in percent; the rest as they are, with three digits."""


def of_summary(name: str) -> Measure:
    def measure(run: Run) -> float | None:
        value: float | None = run.metrics[name]
        return value

    return measure


def detection(run: Run) -> Detection:
    """Free-riders found by the contributions of every round (smoothed, later frozen, as they are used)."""
    standing = [record["standing"] for record in run.rounds if record["standing"] is not None]
    return detect(standing, run.metrics["free_riders"])


def estimated(run: Run) -> Fidelity | None:
    """The evidence of the last probed round against the truth."""
    return None if run.evidence is None else fidelity(run.metrics["counts"], run.evidence)


def uniform(run: Run) -> Fidelity | None:
    return against_uniform(run.metrics["counts"])


def footprint(name: str) -> Measure:
    def measure(run: Run) -> float | None:
        from celm.study import footprint  # torch comes along, which a list of studies does not need

        value: float | None = getattr(footprint, name)(run)
        return value

    return measure


MEASURES: dict[str, Measure] = {
    **{name: of_summary(name) for name in ACCURACIES},
    "auroc": lambda run: detection(run).auroc,
    "fpr": lambda run: detection(run).fpr,
    "tpr": lambda run: detection(run).tpr,
    "jsd": lambda run: getattr(estimated(run), "jensen_shannon", None),
    "emd": lambda run: getattr(estimated(run), "emd", None),
    "hellinger": lambda run: getattr(estimated(run), "hellinger", None),
    "jsd_uniform": lambda run: getattr(uniform(run), "jensen_shannon", None),
    "emd_uniform": lambda run: getattr(uniform(run), "emd", None),
    "hellinger_uniform": lambda run: getattr(uniform(run), "hellinger", None),
    "probed_rounds": lambda run: float(sum(record["evidence"] is not None for record in run.rounds)),
    "gini": lambda run: gini(run.weights),
    "upload_megabytes": footprint("upload"),
    "download_megabytes": footprint("download"),
    "probe_megabytes": footprint("probe_memory"),
    "server_seconds": footprint("server_seconds"),
}

COSTS = {"upload_megabytes", "download_megabytes", "probe_megabytes", "server_seconds"}
"""A round's, of all clients together; see `celm.study.footprint`."""
LOW_IS_GOOD = {"fpr", "jsd", "emd", "hellinger", "probed_rounds", *COSTS}
UNRANKED = {"gini"}
"""Neither more nor less is better."""
WALL_CLOCK = {"server_seconds"}
"""Never twice the same, so in a table apart from those that repeat byte for byte."""


def measured(name: str, run: Run) -> float | None:
    return MEASURES[checked(name)](run)


def checked(name: str) -> str:
    if name not in MEASURES:
        raise CelmError(f"unknown metric '{name}'", nearest(name, MEASURES))
    return name
