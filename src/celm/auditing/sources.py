"""Sources of the models of an audit: files, or objects in memory."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from celm.auditing.checkpoint_reader import check_named_tensors, parse_checkpoint, take_snapshot
from celm.auditing.discovery import (
    discover,
    display_label,
    find_invalid_names,
    find_model_files,
    make_candidate,
)
from celm.base.client_order import natural_sort_key
from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.models.state_dict import StateDict

GLOBAL_NAME = ""
"""The name of the global model; no client can have it."""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a source; of a file also the SHA-256 and the number of its bytes."""

    tensors: StateDict
    sha256: str | None = None
    size: int | None = None


class UnusableFileError(CelmError):
    """The reason for which a file is not a model of this audit, with the digest and size of the file."""

    def __init__(self, reason: str, sha256: str | None, size: int | None) -> None:
        super().__init__(reason)
        self.sha256, self.size = sha256, size


@dataclass(frozen=True)
class Source:
    """A model by name, in a file or in memory."""

    name: str
    path: Path | None = None
    model: Any = None
    reason: str | None = None
    """The reason for which it cannot be used, if that is known before it is read."""

    def read(self, max_bytes: int, max_tensors: int) -> Checkpoint:
        """Read the tensors; refuse a file of more than `max_bytes` or `max_tensors`."""
        if self.path is None:
            return Checkpoint(_state_from_memory(self.model))
        snapshot = take_snapshot(self.path, max_bytes)
        size = len(snapshot.content)
        try:
            tensors = parse_checkpoint(snapshot.content, self.path.suffix, max_bytes, max_tensors)
        except CelmError as error:
            raise UnusableFileError(str(error), snapshot.sha256, size) from error
        return Checkpoint(tensors, snapshot.sha256, size)


def global_model_error(source: Source, error: CelmError) -> CelmError:
    """Return an error that names the file of the global model."""
    path = f" {source.path}" if source.path is not None else ""
    return CelmError(f"global model{path}: {error}")


@dataclass(frozen=True)
class RoundSources:
    """The models of one round."""

    name: str
    global_model: Source
    """The model that the clients started from."""
    clients: tuple[Source, ...]


@dataclass(frozen=True)
class Sources:
    """The models of all rounds, and the names of entries that are not checkpoints."""

    rounds: tuple[RoundSources, ...]
    ignored: tuple[str, ...] = ()

    @property
    def num_models(self) -> int:
        """Models to probe: in each round, its clients and its global model."""
        return sum(len(round.clients) + 1 for round in self.rounds)


def collect_sources(global_model: Any, clients: Any) -> Sources:
    """Collect the sources of an audit. Nothing is read.

    `global_model` is a module, a state dict, a file, or None if every round has its own. `clients` is a mapping of
    models or files by name, or paths.
    """
    global_path = _resolve_global_file(Path(global_model)) if isinstance(global_model, str | Path) else None
    named_global = None
    if global_model is not None:
        named_global = Source(GLOBAL_NAME, global_path, None if global_path else global_model)
    if isinstance(clients, Mapping):
        round = RoundSources("", _require_global("", named_global), _sources_from_mapping(clients))
        return Sources((round,))
    paths = [clients] if isinstance(clients, str | Path) else list(clients)
    if not all(isinstance(path, str | Path) for path in paths):
        raise CelmError("clients must be models by name, or paths", "as in {'north': model}")
    discovered = discover([Path(path) for path in paths], global_path or Path())
    rounds = []
    for files in discovered.rounds:
        round_global = Source(GLOBAL_NAME, files.global_file) if files.global_file else named_global
        sources = tuple(Source(client.name, client.path, None, client.reason) for client in files.clients)
        rounds.append(RoundSources(files.name, _require_global(files.name, round_global), sources))
    return Sources(tuple(rounds), discovered.ignored)


def _require_global(round_name: str, source: Source | None) -> Source:
    if source is None:
        raise CelmError(
            f"no global model{f' for {round_name}' if round_name else ''}: the model that the clients started from",
            "name it by --global, or put a global.* into the folder of every round",
        )
    return source


def _resolve_global_file(path: Path) -> Path:
    """Return the file of the global model; in a folder of `save_pretrained`, its model file."""
    with os_errors_as_celm_error(path, "read"):
        is_directory = stat.S_ISDIR(path.stat().st_mode)
    if not is_directory:
        return path.resolve()
    model_files = find_model_files(path.resolve())
    if len(model_files) != 1:
        raise CelmError(
            f"global model {path}: folder with {len(model_files)} models, expected 1",
            f"name one of {path}/*",
        )
    return model_files[0]


def _sources_from_mapping(clients: Mapping[str, Any]) -> tuple[Source, ...]:
    if not clients:
        raise CelmError("no clients to audit")
    invalid = find_invalid_names(clients)
    sources = []
    for name, model in clients.items():
        if isinstance(model, str | Path):
            candidate = make_candidate(name, Path(model).resolve())
            sources.append(Source(candidate.name, candidate.path, None, candidate.reason))
        else:
            label = display_label(name) if name in invalid else name
            sources.append(Source(label, None, model, invalid.get(name)))
    return tuple(sorted(sources, key=lambda source: natural_sort_key(source.name)))


def _state_from_memory(model: Any) -> dict[str, Tensor]:
    if isinstance(model, nn.Module):
        model = model.state_dict()
    if not isinstance(model, Mapping):
        raise CelmError(f"expected a module, a state dict or a file, got {type(model).__name__[:40]}")
    return check_named_tensors(model)
