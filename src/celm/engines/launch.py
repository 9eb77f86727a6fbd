"""A run from start to end in one folder, begun or resumed."""

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
from celm.engines.choice import engine_for
from celm.federation import checkpoint
from celm.federation.assembly import Federation, assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder
from celm.federation.jobs import Engine
from celm.federation.place import default_place
from celm.federation.rounds import State, play
from celm.federation.run import Run, summary
from celm.method.probe import ProbeFunction

Watch = Callable[[int, int, dict[str, Any]], None]
"""Called after every round with its number, the number of rounds, and its record."""
Hire = Callable[[Federation, int], Engine]
"""Gives the engine for a federation and a number of rounds."""


def run(experiment: Experiment, out: str | Path | None = None, watch: Watch | None = None) -> Run:
    """Run an experiment in a new folder, by default under `runs/`."""
    place = Path(out) if out else default_place(experiment)
    folder = Folder.create(place, experiment, claimed=out is None)
    return replace(carry_out(folder, watch), named=experiment.model.name or None)


def resume(path: str | Path, watch: Watch | None = None, model: str | None = None) -> Run:
    """Go on with a run from where its folder says it got to; a finished one is just read.

    `model` repeats the name of a model of your own: the folder may be anybody's, and `package.module:factory` is code.
    """
    folder = Folder.open(Path(path))
    folder.check_model(model)
    return replace(carry_out(folder, watch), named=model)


def carry_out(
    folder: Folder,
    watch: Watch | None = None,
    workers: int | None = None,
    hire: Hire | None = None,
    prober: ProbeFunction | None = None,
) -> Run:
    """Do what is left of the run in `folder`. Neither `workers`, which overrides the settings, nor who `hire`
    gives to run the clients changes any result; who probes changes it by rounding only."""
    if folder.result() is not None:
        return Run.read(folder)
    with folder.locked():
        return go_on(folder, watch, workers, hire, prober)


def go_on(
    folder: Folder,
    watch: Watch | None = None,
    workers: int | None = None,
    hire: Hire | None = None,
    prober: ProbeFunction | None = None,
) -> Run:
    """The same, for who holds the lock of `folder` already."""
    if folder.result() is not None:  # another process ended it meanwhile
        return Run.read(folder)
    folder.sweep()
    try:
        experiment = resolve(folder.settings())
        folder.write_settings(experiment)
        torch.set_num_threads(experiment.run.threads)
        federation = assemble(experiment)
    except CelmError:
        if folder.fresh:
            folder.discard()  # nothing was done yet: leave nothing behind
        raise
    if workers is not None:
        federation = with_workers(federation, workers)
    if prober is not None:
        federation = replace(federation, facts=replace(federation.facts, prober=prober))
    state = checkpoint.restore(folder, federation)
    note_start(folder)
    if state.number < federation.rounds:
        with closing((hire or engine_for)(federation, federation.rounds - state.number)) as engine:
            while state.number < federation.rounds:
                state = step(folder, federation, state, engine, watch)
    finish(folder, federation, state)
    return Run.read(folder)


def step(folder: Folder, federation: Federation, state: State, engine: Any, watch: Watch | None) -> State:
    start = time.perf_counter()
    played = play(federation, state, engine)
    seconds = time.perf_counter() - start
    if played.inputs is not None:
        about = {"round": played.state.number}
        write_tensors(folder.path / "probes.safetensors", dict(played.inputs), about)
    times = {"seconds": round(seconds, 6), "server_seconds": round(played.server_seconds, 6)}
    folder.add_round(played.record, times)
    checkpoint.save(folder, federation, played.state)
    if watch:
        watch(played.state.number, federation.rounds, played.record)
    return played.state


def finish(folder: Folder, federation: Federation, state: State) -> None:
    write_tensors(folder.path / "model.safetensors", state.model, federation.recipe.to_json())
    seconds = sum(line["seconds"] for line in folder.times())
    folder.write_json("result.json", summary(federation, folder.records(), seconds))


def with_workers(federation: Federation, workers: int) -> Federation:
    tables = federation.experiment.tables()
    tables["run"]["workers"] = workers
    return replace(federation, experiment=Experiment.parse(tables))


def note_start(folder: Folder) -> None:
    """Versions and host facts; one entry each time the run is taken up."""
    facts = folder.facts()
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            name: version(name) for name in ("celm", "torch", "numpy", "scikit-learn", "safetensors")
        },
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    folder.write_json("facts.json", {"starts": [*facts, entry]})
