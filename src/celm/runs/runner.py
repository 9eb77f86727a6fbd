"""Run an experiment in a folder, from the start or from its last checkpoint."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from celm.base.errors import CelmError
from celm.base.files import write_tensors
from celm.core.probe import ProbeFunction
from celm.engines.select import select_engine
from celm.experiment.config import Experiment
from celm.experiment.objects import give_objects, resume_call, warn_unsaved
from celm.federation.build import Federation, ResolvedExperiment, build_federation, resolve_defaults
from celm.federation.client_trainer import Engine
from celm.federation.round import run_round
from celm.records.run_records import EnvironmentStart
from celm.runs import checkpoint
from celm.runs.run import Run, summarise_run
from celm.runs.run_folder import RunFolder, default_run_path

RoundCallback = Callable[[int, int, dict[str, Any]], None]
"""Called after every round with its number, the number of rounds, and its record."""
_EngineFactory = Callable[[Federation, int], Engine]
"""Called with a federation and its number of remaining rounds; returns the engine."""


def run(experiment: Experiment, out: str | Path | None = None, watch: RoundCallback | None = None) -> Run:
    """Run an experiment in a new folder, by default under `runs/`."""
    resolved = resolve_defaults(experiment)
    folder = create_run_folder(experiment, resolved, Path(out) if out else None)
    warn_unsaved([experiment], lambda tables: f"to resume this run, call {resume_call(folder.path, tables)}")
    finished = continue_run(folder, watch, resolved=resolved)
    return replace(finished, confirmed_model=experiment.model.name or None)


def resume(path: str | Path, watch: RoundCallback | None = None, model: Any = None, **objects: Any) -> Run:
    """Continue a run from the last checkpoint in its folder; a finished run is only read.

    A model factory `package.module:factory` is code, and the folder may come from anyone. It is imported only if
    `model` repeats its name. A run that began with objects needs them again, by the same keywords, as in
    `resume(folder, rule=MyRule(), dataset=(x, y))`.
    """
    folder = RunFolder.open(Path(path))
    if model is not None and not isinstance(model, str):
        objects["model"] = model
        model = None
    give_objects(folder.settings(), objects, folder.path)
    folder.check_model(model)
    return replace(continue_run(folder, watch), confirmed_model=model)


def create_run_folder(experiment: Experiment, resolved: ResolvedExperiment, out: Path | None) -> RunFolder:
    """Create the folder of a new run and write its settings; by default, `experiment` gives the folder its name."""
    path = out or default_run_path(experiment)
    return RunFolder.create(path, resolved.experiment, owns_directory=out is None)


def continue_run(
    folder: RunFolder,
    watch: RoundCallback | None = None,
    workers: int | None = None,
    engine_factory: _EngineFactory | None = None,
    probe_fn: ProbeFunction | None = None,
    resolved: ResolvedExperiment | None = None,
) -> Run:
    """Run the remaining rounds of the run in `folder`.

    `workers` overrides the settings. Neither `workers` nor the engine changes any result. `probe_fn` changes results by
    rounding only. `resolved` is the experiment of the folder, if the caller has already resolved it.
    """
    if folder.result() is not None:
        return Run.read(folder)
    with folder.lock():
        return continue_locked(folder, watch, workers, engine_factory, probe_fn, resolved)


def continue_locked(
    folder: RunFolder,
    watch: RoundCallback | None = None,
    workers: int | None = None,
    engine_factory: _EngineFactory | None = None,
    probe_fn: ProbeFunction | None = None,
    resolved: ResolvedExperiment | None = None,
) -> Run:
    """Do the same as `continue_run` in a folder that the caller has locked."""
    if folder.result() is not None:  # another process has finished the run meanwhile
        return Run.read(folder)
    folder.remove_leftovers()

    # Build the federation from the settings, and restore its state from the newest checkpoint.
    federation = _build_or_remove(folder, resolved)
    if workers not in (None, federation.experiment.run.workers):
        federation = _with_workers(federation, workers)
    if probe_fn is not None:
        federation = federation.with_context(probe_fn=probe_fn)
    state = checkpoint.load_federation_state(folder, federation)
    _record_environment(folder)

    # Run the remaining rounds.
    rounds_left = federation.rounds - state.round_number
    if rounds_left:
        with closing((engine_factory or select_engine)(federation, rounds_left)) as engine:
            for _ in range(rounds_left):
                # Select clients, train them, compute weights, aggregate, evaluate.
                start = time.perf_counter()
                result = run_round(federation, state, engine)
                seconds = time.perf_counter() - start
                state = result.state

                # Save the round. The checkpoint comes last: it determines which round the run has reached.
                if result.probe_inputs is not None:
                    metadata = {"round": state.round_number}
                    write_tensors(folder.path / "probes.safetensors", dict(result.probe_inputs), metadata)
                times = {"seconds": round(seconds, 6), "server_seconds": round(result.server_seconds, 6)}
                folder.append_round(result.record, times)
                checkpoint.save_federation_state(folder, federation, state)

                # Report progress.
                if watch:
                    watch(state.round_number, federation.rounds, result.record)

    # Write the global model, then the summary: a folder with result.json is a finished run.
    model = federation.complete_model(state.model)
    write_tensors(folder.path / "model.safetensors", model, federation.model_spec.to_json())
    total_seconds = sum(line["seconds"] for line in folder.times())
    folder.write_result(summarise_run(federation, folder.records(), total_seconds))
    return Run.read(folder)


def _build_or_remove(folder: RunFolder, resolved: ResolvedExperiment | None) -> Federation:
    """Build the federation of a folder. If its settings are wrong and the folder is new, remove the folder."""
    try:
        if resolved is None:
            resolved = resolve_defaults(folder.settings())
        # The file may be written by hand, or not be resolved yet.
        if resolved.experiment != folder.settings():
            folder.write_settings(resolved.experiment)
        torch.set_num_threads(resolved.experiment.run.threads)
        return build_federation(resolved)
    except CelmError:
        if folder.is_new:
            folder.remove_if_unused()
        raise


def _with_workers(federation: Federation, workers: int | None) -> Federation:
    tables = federation.experiment.to_dict()
    tables["run"]["workers"] = workers
    return replace(federation, experiment=Experiment.parse(tables))


def _record_environment(folder: RunFolder) -> None:
    """Append versions and host to environment.json: one entry for each start or resume."""
    packages = ("celm", "torch", "numpy", "scikit-learn", "safetensors")
    start = EnvironmentStart(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version(name) for name in packages},
        python=platform.python_version(),
        system=platform.platform(),
        machine=platform.machine(),
        cpu=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
    )
    folder.append_environment(start)
