"""A federation's state in a run folder, and back."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.federation.assembly import Federation
from celm.federation.folder import Folder
from celm.federation.rounds import State, begin
from celm.federation.trees import pack, unpack
from celm.models.state import describe_mismatch


def save(folder: Folder, federation: Federation, state: State) -> None:
    tensors: dict[str, Tensor] = {}
    about = {
        "round": state.number,
        "settings": settings_digest(federation),
        "state": pack(state, "state", tensors),
    }
    folder.save_checkpoint(state.number, tensors, about)


def restore(folder: Folder, federation: Federation) -> State:
    """Where the run got to; the record is cut to it. The beginning where there is no checkpoint."""
    loaded = folder.load_checkpoint()
    if loaded is None:
        folder.rewind(0)
        return begin(federation)
    tensors, about = loaded
    if about.get("settings") != settings_digest(federation):
        raise CelmError(
            f"{folder.path / 'settings.toml'} was changed since the run began",
            "a changed experiment is a new run",
        )
    device = federation.workbench.device
    try:
        state = rebuild(
            about["state"], {name: tensor.to(device) for name, tensor in tensors.items()}, federation
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CelmError(
            f"{folder.checkpoint_files()[-1]} is not a checkpoint of this run ({type(error).__name__}: {error})"
        ) from error
    reason = describe_mismatch(state.model, federation.initial)
    if reason:
        raise CelmError(f"{folder.checkpoint_files()[-1]} is not a checkpoint of this run: {reason}")
    folder.rewind(state.number)
    return state


def settings_digest(federation: Federation) -> str:
    """Of every setting that a result depends on."""
    tables = federation.experiment.tables()
    tables["run"].pop("workers", None)
    return hashlib.sha256(dump_json(tables).encode()).hexdigest()


def rebuild(packed: Any, tensors: dict[str, Tensor], federation: Federation) -> State:
    memory = federation.workbench.objective.memory_type
    hints = {
        "rule": federation.rule.state_type,
        "observers": {name: rule.state_type for name, rule in federation.observers.items()},
        "server": federation.server.state_type if federation.server else None,
        "memories": dict.fromkeys(federation.facts.clients, memory),
    }
    state: State = unpack(packed, tensors, State, hints)
    return state
