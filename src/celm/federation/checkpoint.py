"""A federation's state in a run folder, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from celm.base.errors import CelmError
from celm.federation.assembly import Federation
from celm.federation.folder import Folder
from celm.federation.rounds import State, begin
from celm.federation.trees import pack, unpack
from celm.models.state import describe_mismatch


def save(folder: Folder, state: State) -> None:
    tensors: dict[str, Tensor] = {}
    about = {"round": state.number, "state": pack(state, "state", tensors)}
    folder.save_checkpoint(state.number, tensors, about)


def restore(folder: Folder, federation: Federation) -> State:
    """Where the run got to; the record is cut to it. The beginning where there is no checkpoint."""
    loaded = folder.load_checkpoint()
    if loaded is None:
        folder.rewind(0)
        return begin(federation)
    tensors, about = loaded
    device = federation.workbench.device
    try:
        state = rebuild(
            about["state"], {name: tensor.to(device) for name, tensor in tensors.items()}, federation
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CelmError(
            f"{folder.checkpoint_files()[-1]} is not a checkpoint of this run: {error!r}"
        ) from error
    reason = describe_mismatch(state.model, federation.initial)
    if reason:
        raise CelmError(f"{folder.checkpoint_files()[-1]} is not a checkpoint of this run: {reason}")
    folder.rewind(state.number)
    return state


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
