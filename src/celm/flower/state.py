"""What the server remembers between rounds, and the folder in which it survives being killed.

    rounds.jsonl            the record, one line a round (see `celm.flower.records`)
    evaluations.jsonl       metrics of the global model, one line a round
    failures.jsonl          attempts at a round that had too few usable replies
    times.jsonl             seconds of each part of a round
    checkpoints/            the state after the last two rounds
    settings.json           everything the results depend on
    names.json              which node has which name (see `celm.flower.identity`)
    run.lock                held by the server that is at work

It keeps the promises of every run folder: a round counts once its checkpoint is in place, and what the record says
beyond it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import dump_json, explained, read_text, write_text
from celm.federation.chain import check_chain
from celm.federation.folder import Folder, append_line, read_json, read_lines
from celm.federation.trees import pack, unpack
from celm.flower.identity import Node, mark, named
from celm.models.state import StateDict, describe_mismatch


@dataclass(frozen=True)
class ServerState:
    """A federation between two rounds."""

    number: int
    """Rounds done."""
    model: StateDict
    rule: Any
    """What the rule remembers."""
    clients: tuple[str, ...] = ()
    """Everyone ever connected."""
    heads: Mapping[str, StateDict] = field(default_factory=dict)
    """The head each client sent last, while heads stay local."""


class Memory:
    """Records and states in a folder, or, without one, for as long as the process lives."""

    def __init__(self, path: str | Path | None) -> None:
        # Absolute from now on: whoever changes the working folder later does not move the state.
        self.folder = None if path is None else Folder(Path(path).absolute())
        self.records: list[dict[str, Any]] = []
        self.evaluations: dict[int, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        """What tells a node from all others to the name it was given."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The folder, made if need be, for this process alone."""
        if self.folder is not None:
            with explained(self.folder.path, "create"):
                self.folder.path.mkdir(parents=True, exist_ok=True)
        with nullcontext() if self.folder is None else self.folder.locked():
            yield

    def restore(
        self, settings: Mapping[str, Any], rule_state: type, reference: StateDict
    ) -> ServerState | None:
        """The state after the last finished round; None at the beginning."""
        self.records, self.evaluations = [], {}
        if self.folder is None:
            return None
        self.folder.sweep()
        place = self.folder.path / "settings.json"
        if place.exists() and read_json(place) != settings:
            raise CelmError(
                f"{self.folder.path} holds a federation with other settings", "choose another folder"
            )
        self.names = read_names(self.folder.path / "names.json")
        loaded = self.folder.load_checkpoint()
        state = None
        if loaded is not None:
            state = rebuilt(*loaded, rule_state, reference, self.folder.checkpoint_files()[-1])
        self.folder.write_json("settings.json", settings)
        done = state.number if state else 0
        self.folder.rewind(done)
        self.records = self.folder.records()
        check_chain(self.records)
        self.evaluations = {
            line["round"]: line for line in whole_lines(self.folder.path / "evaluations.jsonl", done)
        }
        whole_lines(self.folder.path / "failures.jsonl", done + 1)
        return state

    def identify(self, nodes: Iterable[Node]) -> dict[str, int]:
        """Client name to node id; a name is kept before anybody is called by it."""
        found = list(nodes)
        names = named(found, self.names)
        if self.folder is not None and names != self.names:
            self.folder.write_json("names.json", names)
        self.names = names
        return {names[mark(node)]: node.node_id for node in found}

    def keep(self, state: ServerState, record: dict[str, Any], seconds: dict[str, float]) -> None:
        """A finished round."""
        if self.folder is not None:
            self.folder.add_round(record, seconds)
            tensors: dict[str, Tensor] = {}
            about = {"round": state.number, "state": pack(state, "state", tensors)}
            self.folder.save_checkpoint(state.number, tensors, about)
        self.records.append(record)

    def keep_evaluation(self, line: dict[str, Any]) -> None:
        self.evaluations[line["round"]] = line
        if self.folder is not None:
            append_line(self.folder.path / "evaluations.jsonl", line)

    def keep_failure(self, line: dict[str, Any]) -> None:
        if self.folder is not None:
            append_line(self.folder.path / "failures.jsonl", line)


def whole_lines(path: Path, last: int) -> list[dict[str, Any]]:
    """The lines up to round `last`; a torn or later one is taken out of the file."""
    lines = [line for line in read_lines(path) if line.get("round", last + 1) <= last]
    content = "".join(dump_json(line) + "\n" for line in lines)
    if path.exists() and read_text(path) != content:
        write_text(path, content)
    return lines


def read_names(path: Path) -> dict[str, str]:
    """Those given so far; none in a folder from before names were kept."""
    names = read_json(path) if path.exists() else {}
    if not all(isinstance(name, str) for name in names.values()) or len(set(names.values())) < len(names):
        raise CelmError(f"{path} is damaged: every node needs one name, and every name one node")
    return names


def rebuilt(
    tensors: dict[str, Tensor], about: dict[str, Any], rule_state: type, reference: StateDict, path: Path
) -> ServerState:
    try:
        state: ServerState = unpack(
            about["state"], moved(tensors, reference), ServerState, {"rule": rule_state}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CelmError(f"{path} is not a state of this federation ({type(error).__name__})") from error
    reason = describe_mismatch(state.model, reference)
    if reason:
        raise CelmError(f"{path} is not a state of this federation: {reason}")
    return state


def moved(tensors: Mapping[str, Tensor], reference: StateDict) -> dict[str, Tensor]:
    device = next(iter(reference.values())).device
    return {name: tensor.to(device) for name, tensor in tensors.items()}
