"""What a grid will take, before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celm.base.errors import CelmError
from celm.data.dataset import Dataset
from celm.engines.choice import seconds_a_sample
from celm.federation.assembly import assemble, deal, load
from celm.federation.experiment import Experiment
from celm.study.grid import Cell, check_place, rounds_done, settled

ALIKE = ("dataset", "model", "train", "objective")
"""Tables of settings by which a sample takes its time."""


def expected_cost(cells: Sequence[Cell]) -> dict[str, Any]:
    """Runs, those done, those whose files are damaged, hours on one core for the rest, and what cannot be run, and why.

    Of every run the samples that its clients train on are counted; what one of them takes is timed once for all runs
    that share dataset, model, training and objective. It is three forward passes: the second model or pass of some
    objectives is not in it, nor are probes and evaluation. Beside real runs the estimate was 10 to 20 % off for
    FashionMNIST, and 40 % for CIFAR-10 under PLS.
    """
    for cell in cells:
        check_place(cell)
    outcomes = [settled(cell) for cell in cells]
    left = [cell for cell, outcome in zip(cells, outcomes, strict=True) if outcome is None]
    damaged = sum(outcome is not None and outcome.error is not None for outcome in outcomes)
    seconds, errors = expected_seconds(left)
    return {
        "runs": len(cells),
        "done": len(cells) - len(left) - damaged,
        "damaged": damaged,
        "hours": round(seconds / 3600, 6),
        "errors": errors,
    }


def expected_seconds(cells: Sequence[Cell]) -> tuple[float, dict[str, str]]:
    """Of all that can be run, and the rest by its label with its error."""
    by_dataset: dict[str, list[Cell]] = {}
    for cell in cells:
        by_dataset.setdefault(repr(cell.experiment.dataset), []).append(cell)
    known: dict[str, float] = {}
    seconds = 0.0
    errors: dict[str, str] = {}
    for group in by_dataset.values():
        try:
            dataset = load(group[0].experiment)
        except CelmError as error:
            errors |= {cell.label: str(error) for cell in group}
            continue
        for cell in group:
            tables = cell.experiment.tables()
            likeness = repr([tables[name] for name in ALIKE])
            try:
                samples = samples_a_round(cell.experiment, dataset)
                if likeness not in known:
                    known[likeness] = seconds_a_sample(assemble(cell.experiment).workbench)
            except CelmError as error:
                errors[cell.label] = str(error)
                continue
            seconds += known[likeness] * samples * (cell.rounds - rounds_done(cell))
    return seconds, errors


def samples_a_round(experiment: Experiment, dataset: Dataset) -> float:
    """How many samples all clients that take part in a round train on, each epoch counted."""
    held_out = experiment.run.validation or 0.0
    sizes = [len(rows) for rows in deal(experiment, dataset).clients.values()]
    samples = sum(size - round(held_out * size) for size in sizes)
    return samples * experiment.train.epochs * experiment.run.participation
