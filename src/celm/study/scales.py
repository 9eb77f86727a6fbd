"""The scale of a study: as in the paper, quick on the real data, or a smoke test that needs no data.

paper   as declared
quick   a fifth of the rounds but at least ten (rates decay in proportion), at most 1000 samples of each class, the
        first seed. The global model is evaluated eight times or slightly more often, because an evaluation after every
        round takes as long as the training
smoke   the embedded digits instead of the dataset, three rounds, a fortieth of the probe steps, the first seed. With
        ground truth, three clients, and each split once
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from celm.experiment.config import Experiment, ProbeConfig
from celm.federation.build import resolve_defaults
from celm.study.spec import Row, StudySpec

QUICK_LIMIT = 1000
"""Maximum number of samples of each class."""
_QUICK_EVALUATIONS = 8
"""Evaluations of a quick run; the test set is not reduced."""
_DEFAULT_PROBE_STEPS: int = ProbeConfig.model_fields["steps"].default
_SMOKE_STEP_DIVISOR = 40
"""A smoke test divides the number of probe steps by this."""


class Scale(StrEnum):
    paper = "paper"
    quick = "quick"
    smoke = "smoke"

    @property
    def note(self) -> str:
        """Text to add to the title of a table."""
        return {
            "paper": "",
            "quick": " (quick)",
            "smoke": " (smoke: digits for every dataset, a fortieth of the probe's steps)",
        }[self]


def apply_scale(tables: dict[str, Any], scale: Scale) -> dict[str, Any]:
    """Return the settings of a run at a scale. Split, clients and method stay the same."""
    tables = {name: dict(table) for name, table in tables.items()}
    if scale is Scale.quick:
        full_experiment = resolve_defaults(Experiment.parse(tables)).experiment
        rounds = full_experiment.run.rounds or 0
        fewer_rounds = min(rounds, max(10, rounds // 5))
        decays = [at * fewer_rounds // rounds for at in full_experiment.train.decay_at]
        evaluate_every = max(full_experiment.run.evaluate_every, fewer_rounds // _QUICK_EVALUATIONS)
        tables["run"] = {**tables.get("run", {}), "rounds": fewer_rounds, "evaluate_every": evaluate_every}
        tables["train"] = {**tables.get("train", {}), "decay_at": decays}
        limit = min(full_experiment.dataset.limit or QUICK_LIMIT, QUICK_LIMIT)
        tables["dataset"] = {**tables["dataset"], "limit": limit}
    elif scale is Scale.smoke:
        tables["run"] = {**tables.get("run", {}), "rounds": 3}
        tables["train"] = {**tables.get("train", {}), "batch": 32}
        probe = tables.get("probe", {})
        tables["probe"] = {**probe, "steps": _smoke_steps(probe.get("steps", _DEFAULT_PROBE_STEPS))}
        tables["dataset"] = {"name": "digits"}
        if tables["split"]["name"] == "natural":
            tables["split"] = {"name": "pls", "clients": 6}  # digits have no natural split
    return tables


def _smoke_steps(steps: Any) -> Any:
    """Return fewer steps: 5 for the default 200. Different numbers stay different. Invalid values stay as is."""
    return math.ceil(steps / _SMOKE_STEP_DIVISOR) if isinstance(steps, int) else steps


def rows_for_scale(study: StudySpec, scale: Scale) -> list[Row]:
    """Return the rows that a study has at a scale."""
    if not (study.ground_truth and scale is Scale.smoke):
        return list(study.rows)
    row_by_split = {row.split_label: row for row in reversed(study.rows)}
    smoke_rows = [row for row in study.rows if row_by_split[row.split_label] is row]
    return [
        row.model_copy(update={"split": row.split.model_copy(update={"clients": 3})}) for row in smoke_rows
    ]


def seeds_for_scale(seeds: Sequence[int], scale: Scale) -> list[int]:
    return list(seeds) if scale is Scale.paper else list(seeds)[:1]
