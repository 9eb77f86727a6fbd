"""How large a study is run: as in the paper, quick on the real data, or a smoke test that needs no data at all.

paper   as declared
quick   a fifth of the rounds but at least ten (rates decay in proportion), at most 1000 samples of each class,
        eight evaluations of the global model or a few more, since one after every round takes as long as the
        training, the first seed
smoke   the embedded digits in place of the dataset, three rounds, a fortieth of the probe steps, the first seed;
        where every coalition is trained, three clients, and every split once
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from celm.federation.assembly import resolve
from celm.federation.experiment import Experiment, Probing
from celm.study.declaration import Row, Study

QUICK_LIMIT = 1000
"""Samples of each class."""
QUICK_EVALUATIONS = 8
"""The test set stays whole."""
USUAL_STEPS: int = Probing.model_fields["steps"].default
SMOKE_STEPS = 40
"""Probe steps for which a smoke test takes one."""


class Scale(StrEnum):
    paper = "paper"
    quick = "quick"
    smoke = "smoke"

    @property
    def note(self) -> str:
        """What a table's title adds."""
        return {
            "paper": "",
            "quick": " (quick)",
            "smoke": " (smoke: digits for every dataset, a fortieth of the probe's steps)",
        }[self]


def scaled(tables: dict[str, Any], scale: Scale) -> dict[str, Any]:
    """All settings of a run at a scale; the shape of the experiment (split, clients, methods) stays."""
    tables = {name: dict(table) for name, table in tables.items()}
    if scale is Scale.quick:
        full = resolve(Experiment.parse(tables))
        rounds = full.run.rounds or 0
        fewer = min(rounds, max(10, rounds // 5))
        decays = [at * fewer // rounds for at in full.train.decay_at]
        every = max(full.run.evaluate_every, fewer // QUICK_EVALUATIONS)
        tables["run"] = {**tables.get("run", {}), "rounds": fewer, "evaluate_every": every}
        tables["train"] = {**tables.get("train", {}), "decay_at": decays}
        limit = min(full.dataset.limit or QUICK_LIMIT, QUICK_LIMIT)
        tables["dataset"] = {**tables["dataset"], "limit": limit}
    elif scale is Scale.smoke:
        tables["run"] = {**tables.get("run", {}), "rounds": 3}
        tables["train"] = {**tables.get("train", {}), "batch": 32}
        probe = tables.get("probe", {})
        tables["probe"] = {**probe, "steps": smoke_steps(probe.get("steps", USUAL_STEPS))}
        tables["dataset"] = {"name": "digits"}
        if tables["split"]["name"] == "natural":
            tables["split"] = {"name": "pls", "clients": 6}  # digits have no owners
    return tables


def smoke_steps(steps: Any) -> Any:
    """The usual 200 are 5, and methods that differ in their steps still do; what is no number is told of later."""
    return math.ceil(steps / SMOKE_STEPS) if isinstance(steps, int) else steps


def rows_at(study: Study, scale: Scale) -> list[Row]:
    """The rows that are run at a scale."""
    if not (study.ground_truth and scale is Scale.smoke):
        return list(study.rows)
    once = {row.split_label: row for row in reversed(study.rows)}
    few = [row for row in study.rows if once[row.split_label] is row]
    return [row.model_copy(update={"split": row.split.model_copy(update={"clients": 3})}) for row in few]


def seeds_at(seeds: Sequence[int], scale: Scale) -> list[int]:
    return list(seeds) if scale is Scale.paper else list(seeds)[:1]
