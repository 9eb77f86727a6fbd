"""Estimate the time of a study before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celm.base.errors import CelmError
from celm.data.dataset import Dataset
from celm.engines.select import seconds_per_sample
from celm.federation.build import (
    ResolvedExperiment,
    build_federation,
    load_dataset,
    partition_dataset,
    resolve_defaults,
)
from celm.study.plan import RunSpec
from celm.study.results import check_planned_folder, count_rounds_done, existing_outcome

_TIMING_KEYS = ("dataset", "model", "train", "objective")
"""Tables of settings that determine the time per sample."""


def estimate_cost(specs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return the number of runs, of finished and of damaged runs, the hours on one core for the others, and errors.

    The hours are the number of training samples times the time per sample. The time per sample is that of three forward
    passes, measured once for all runs with the same dataset, model, training and objective. Probes, evaluation, and the
    second model or pass of some objectives are not included. Compared with real runs, the estimate was 10 to 20 % off
    for FashionMNIST, and 40 % for CIFAR-10 under PLS.
    """
    for spec in specs:
        check_planned_folder(spec)
    outcomes = [existing_outcome(spec) for spec in specs]
    pending = [spec for spec, outcome in zip(specs, outcomes, strict=True) if outcome is None]
    damaged = sum(outcome is not None and outcome.error is not None for outcome in outcomes)
    seconds, errors = estimate_seconds(pending)
    return {
        "runs": len(specs),
        "done": len(specs) - len(pending) - damaged,
        "damaged": damaged,
        "hours": round(seconds / 3600, 6),
        "errors": errors,
    }


def estimate_seconds(specs: Sequence[RunSpec]) -> tuple[float, dict[str, str]]:
    """Return the seconds of all runs that can be run, and label to error of the others."""
    specs_by_dataset: dict[str, list[RunSpec]] = {}
    for spec in specs:
        specs_by_dataset.setdefault(repr(spec.experiment.dataset), []).append(spec)
    timings: dict[str, float] = {}
    seconds = 0.0
    errors: dict[str, str] = {}
    for group in specs_by_dataset.values():
        try:
            dataset = load_dataset(resolve_defaults(group[0].experiment))
        except CelmError as error:
            errors |= {spec.label: str(error) for spec in group}
            continue
        for spec in group:
            tables = spec.experiment.to_dict()
            timing_key = repr([tables[name] for name in _TIMING_KEYS])
            try:
                resolved = resolve_defaults(spec.experiment)
                samples = _samples_per_round(resolved, dataset)
                if timing_key not in timings:
                    timings[timing_key] = seconds_per_sample(build_federation(resolved).trainer)
            except CelmError as error:
                errors[spec.label] = str(error)
                continue
            seconds += timings[timing_key] * samples * (spec.rounds - count_rounds_done(spec))
    return seconds, errors


def _samples_per_round(resolved: ResolvedExperiment, dataset: Dataset) -> float:
    """Return how many samples the clients of a round train on, counted in each epoch."""
    experiment = resolved.experiment
    validation_fraction = experiment.run.validation or 0.0
    sizes = [len(rows) for rows in partition_dataset(resolved, dataset).clients.values()]
    samples = sum(size - round(validation_fraction * size) for size in sizes)
    return samples * experiment.train.epochs * experiment.run.participation
