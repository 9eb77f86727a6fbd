"""Where a model of an audit comes from: a file, or the memory of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from celm.auditing.discovery import candidate, check_names, discover, label
from celm.auditing.reading import named_tensors, parse, take_snapshot
from celm.base.errors import CelmError
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
    start: Source
    rounds: tuple[RoundSources, ...]
    ignored: tuple[str, ...] = ()


def sources_of(start: Any, clients: Any) -> Sources:
    """`start`: a module, a state dict or a file; `clients`: the same by name, or folders and files."""
    place = Path(start).resolve() if isinstance(start, str | Path) else None
    origin = Source("global", place, None if place else start)
    if isinstance(clients, Mapping):
        return Sources(origin, (RoundSources("", None, by_name(clients)),))
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
    return Sources(origin, rounds, found.ignored)


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
