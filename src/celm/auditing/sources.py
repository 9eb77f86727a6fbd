"""Where a model of an audit comes from: a file, or the memory of the caller."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from celm.auditing.discovery import candidate, check_names, discover, label, models_in
from celm.auditing.reading import named_tensors, parse, take_snapshot
from celm.base.errors import CelmError
from celm.base.files import explained
from celm.base.names import natural
from celm.models.state import StateDict


@dataclass(frozen=True)
class Source:
    """A model by name; `reason` says why it cannot be used, where that is known before it is read."""

    name: str
    path: Path | None = None
    model: Any = None
    reason: str | None = None

    def read(self, largest: int) -> tuple[dict[str, Tensor], str | None, int]:
        """Its tensors, and of a file the SHA-256 of its bytes and their number."""
        if self.path is None:
            return in_memory(self.model), None, 0
        snapshot = take_snapshot(self.path, largest)
        try:
            return parse(snapshot.content, self.path.suffix, largest), snapshot.sha256, len(snapshot.content)
        except CelmError as error:
            raise UnreadableError(str(error), snapshot.sha256, len(snapshot.content)) from error


class UnreadableError(CelmError):
    """A file that was read, but holds no model: its digest is known all the same."""

    def __init__(self, reason: str, sha256: str, size: int) -> None:
        super().__init__(reason)
        self.sha256, self.size = sha256, size


@dataclass(frozen=True)
class RoundSources:
    name: str
    start: Source | None
    """The round's own global model."""
    clients: tuple[Source, ...]


@dataclass(frozen=True)
class Sources:
    start: Source | None
    """What clients started from in rounds that have no global model of their own."""
    rounds: tuple[RoundSources, ...]
    ignored: tuple[str, ...] = ()


def sources_of(start: Any, clients: Any) -> Sources:
    """`start`: a module, a state dict, a file, or None where every round has its own; `clients`: by name, or files."""
    place = start_file(Path(start)) if isinstance(start, str | Path) else None
    origin = None if start is None else Source("global", place, None if place else start)
    if isinstance(clients, Mapping):
        return begun(Sources(origin, (RoundSources("", None, by_name(clients)),)))
    paths = [clients] if isinstance(clients, str | Path) else list(clients)
    found = discover([Path(path) for path in paths], place or Path())
    rounds = tuple(
        RoundSources(
            each.name,
            Source("global", each.start) if each.start else None,
            tuple(Source(client.name, client.path, None, client.reason) for client in each.clients),
        )
        for each in found.rounds
    )
    return begun(Sources(origin, rounds, found.ignored))


def begun(sources: Sources) -> Sources:
    """Checked that it is known of every round what its clients started from."""
    without = [round.name for round in sources.rounds if round.start is None]
    if sources.start is None and without:
        where = f" of {without[0]}" if without[0] else ""
        raise CelmError(
            f"the model that the clients{where} started from is missing",
            "name it by --global, or put a global.* into every round's folder",
        )
    return sources


def start_file(path: Path) -> Path:
    """The global model's file; of a folder that `save_pretrained` left, the one in it."""
    with explained(path, "read"):
        folder = stat.S_ISDIR(path.stat().st_mode)
    if not folder:
        return path.resolve()
    held = models_in(path.resolve())
    if len(held) != 1:
        raise CelmError(
            f"the global model {path} is a folder with {len(held)} models", f"name one of {path}/*"
        )
    return held[0]


def by_name(clients: Mapping[str, Any]) -> tuple[Source, ...]:
    if not clients:
        raise CelmError("there are no clients to audit")
    refused = check_names(clients)
    told = []
    for name, model in clients.items():
        if isinstance(model, str | Path):
            found = candidate(name, Path(model).resolve())
            told.append(Source(found.name, found.path, None, found.reason))
        else:
            told.append(Source(label(name) if name in refused else name, None, model, refused.get(name)))
    return tuple(sorted(told, key=lambda source: natural(source.name)))


def in_memory(model: Any) -> StateDict:
    if isinstance(model, nn.Module):
        model = model.state_dict()
    if not isinstance(model, Mapping):
        raise CelmError(f"expected a module, a state dict or a file, got {type(model).__name__[:40]}")
    return named_tensors(model)
