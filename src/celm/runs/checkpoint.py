"""Save the state of a federation in a run folder, and restore it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.state_serialisation import flatten_state, restore_state
from celm.federation.build import Federation
from celm.federation.clients import ClientsState
from celm.federation.round import FederationState, initial_state
from celm.federation.server import ServerState
from celm.models.state_dict import describe_mismatch
from celm.records.checksums import run_file_sha256
from celm.records.run_records import RUN_REMEDY
from celm.records.schema import check_schema_version
from celm.runs.run_folder import RunFolder

_CHECKPOINT_VERSION = 1
"""The version of the fields of a saved state."""


def save_federation_state(folder: RunFolder, federation: Federation, state: FederationState) -> None:
    tensors: dict[str, Tensor] = {}
    metadata = {
        "schema_version": _CHECKPOINT_VERSION,
        "round": state.round_number,
        "settings": _config_digest(federation),
        "rounds": run_file_sha256(folder.records_path),
        "server": flatten_state(state.server, "server", tensors),
        "clients": flatten_state(state.clients, "clients", tensors),
    }
    folder.save_checkpoint(state.round_number, tensors, metadata)


def load_federation_state(folder: RunFolder, federation: Federation) -> FederationState:
    """Return the state of the last checkpoint, or the initial state, and remove later rounds from the record."""
    loaded = folder.load_checkpoint()
    if loaded is None:
        folder.truncate_to(0)
        return initial_state(federation)
    tensors, metadata = loaded
    path = folder.checkpoint_files()[-1]
    check_schema_version(metadata.get("schema_version"), _CHECKPOINT_VERSION, path, RUN_REMEDY)
    if metadata.get("settings") != _config_digest(federation):
        raise CelmError(
            f"{folder.path / 'settings.toml'} was changed since the run started",
            "run a changed experiment in a new folder",
        )
    device = federation.trainer.device
    try:
        state = _restore_federation_state(
            metadata, {name: tensor.to(device) for name, tensor in tensors.items()}, federation
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CelmError(f"{path} is not a checkpoint of this run: {type(error).__name__}: {error}") from error
    reason = describe_mismatch(state.model, federation.initial_model)
    if reason:
        raise CelmError(f"{path} is not a checkpoint of this run: {reason}")
    folder.truncate_to(state.round_number, metadata.get("rounds"), path.name)
    return state


def _config_digest(federation: Federation) -> str:
    """Return a digest of all settings that the results depend on."""
    tables = federation.experiment.to_dict()
    tables["run"].pop("workers", None)
    return bytes_sha256(dump_json(tables).encode())


def _restore_federation_state(
    metadata: dict[str, Any], tensors: dict[str, Tensor], federation: Federation
) -> FederationState:
    objective_state_type = federation.trainer.objective.client_state_type
    objective_states = dict.fromkeys(federation.context.clients, objective_state_type)
    return FederationState(
        restore_state(metadata["server"], tensors, ServerState, federation.server.state_field_types()),
        restore_state(metadata["clients"], tensors, ClientsState, {"objective_states": objective_states}),
    )
