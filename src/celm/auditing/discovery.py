"""Which files are whose: folders of checkpoints as rounds and clients.

    clients/a.safetensors              a client's name is its file's stem
    clients/b/model.safetensors        or its folder's, as `save_pretrained` leaves it
    clients/round-001/a.safetensors    several rounds, in the order of their numbers
    clients/round-001/global.*         the model that this round's clients started from, a file or a folder, too

Nothing found in a folder is trusted: a name is text to show, never a path to write to; links are not followed; a
name that two files claim, also up to case, belongs to neither.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from celm.auditing.reading import SUFFIXES, check_regular, visible
from celm.base.errors import CelmError
from celm.base.files import explained
from celm.base.names import natural

ROUND = re.compile(r"round[-_]?[0-9]{1,9}", re.IGNORECASE)
GLOBAL = "global"
IN_FOLDER = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin")
"""What `save_pretrained` writes into a client's folder."""
BESIDE = (".json", ".md", ".txt", ".toml", ".yaml", ".yml", ".csv", ".html")
"""Files that nobody takes for a checkpoint."""
LONGEST = 200


@dataclass(frozen=True)
class Candidate:
    """A client, the file that is said to be its model, and why it is none."""

    name: str
    path: Path
    reason: str | None = None


@dataclass(frozen=True)
class RoundFiles:
    name: str
    """Of the folder; empty where there is one round only."""
    clients: tuple[Candidate, ...]
    start: Path | None = None
    """The round's own global model."""


@dataclass(frozen=True)
class Found:
    rounds: tuple[RoundFiles, ...]
    ignored: tuple[str, ...]
    """What is there besides, by name."""


def discover(places: Sequence[Path], start: Path) -> Found:
    """Rounds and clients in folders and files that the operator named; `start` is the global model, no client.

    A link that the operator named is followed; one that was found in a folder is not.
    """
    rounds: dict[str, list[Candidate]] = {}
    starts: dict[str, Path] = {}
    ignored: list[str] = []
    for place in places:
        with explained(place, "read"):
            folder = stat.S_ISDIR(place.stat().st_mode)
            if not folder:
                rounds.setdefault("", []).append(candidate(place.stem, place.resolve()))
                continue
            entries = listing(place)
        parts = [entry for entry in entries if ROUND.fullmatch(entry.name) and is_folder(entry)]
        for part in parts:
            with explained(part, "read"):
                inside = listing(part)
            gather(inside, part.name, start, rounds, starts, ignored)
        if parts:
            ignored += [label(entry.name) for entry in entries if entry not in parts and not hidden(entry)]
        else:
            gather(entries, "", start, rounds, starts, ignored)
    if "" in rounds and len(rounds) > 1:
        raise CelmError(
            "--clients names rounds and, beside them, clients of no round", "audit them one by one"
        )
    found = tuple(
        RoundFiles(name, tuple(sole_claims(rounds[name])), starts.get(name))
        for name in sorted(rounds, key=natural)
    )
    if not any(each.clients for each in found):
        hint = f"expected files that end in {', '.join(SUFFIXES)}"
        inner = [entry for place in places if place.is_dir() for entry in listing(place) if is_folder(entry)]
        if inner:
            hint += f", or folders that hold one of {', '.join(IN_FOLDER)}; did you mean {inner[0]}?"
        raise CelmError(f"no client models in {', '.join(map(str, places))}", hint)
    return Found(found, tuple(ignored))


def listing(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda entry: (natural(entry.name), entry.name))


def gather(
    entries: Iterable[Path],
    round: str,
    start: Path,
    rounds: dict[str, list[Candidate]],
    starts: dict[str, Path],
    ignored: list[str],
) -> None:
    """Sort what a folder holds into clients, the global model, and the rest."""
    clients = rounds.setdefault(round, [])
    for entry in entries:
        held = models_in(entry)
        if hidden(entry) or any(not file.is_symlink() and same_file(file, start) for file in held):
            continue
        own = entry.name if is_folder(entry) else entry.stem
        if not held:
            if is_folder(entry) or entry.suffix.lower() not in BESIDE:
                ignored.append(label(entry.name))
        elif own == GLOBAL and not round:
            ignored.append(label(entry.name))  # the operator has named another one
        elif own == GLOBAL:
            starts[round] = sole_start(entry, held, starts.get(round))
        elif len(held) > 1:
            clients.append(Candidate(label(own), entry, f"its folder holds {len(held)} models"))
        else:
            clients.append(candidate(own, held[0]))


def models_in(entry: Path) -> list[Path]:
    """The files that are the entry's model: itself, or those in its folder."""
    if is_folder(entry):
        return [entry / name for name in IN_FOLDER if os.path.lexists(entry / name)]
    return [entry] if entry.suffix.lower() in SUFFIXES else []


def sole_start(entry: Path, held: Sequence[Path], other: Path | None) -> Path:
    """The one global model of a round; that there are several, or a link, ends the audit."""
    if len(held) > 1:
        raise CelmError(f"{entry} holds {len(held)} models")
    if held[0].is_symlink():
        raise CelmError(f"{held[0]} is a symbolic link, which is not followed")
    if other is not None:
        names = [path.relative_to(entry.parent) for path in (other, held[0])]
        raise CelmError(f"{entry.parent} holds two global models: {names[0]} and {names[1]}")
    return held[0]


def candidate(name: str, path: Path) -> Candidate:
    reason = unfit(name)
    if reason is None and path.is_symlink():
        reason = "is a symbolic link, which is not followed"
    if reason is None:
        try:
            check_regular(path.stat().st_mode)
        except CelmError as error:
            reason = str(error)
        except OSError as error:
            reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
    return Candidate(name if unfit(name) is None else label(name), path, reason)


def unfit(name: str) -> str | None:
    """Why a name cannot be a client's; None if it can."""
    if not name or not name.strip() or not name.isprintable():
        return "its name has characters that cannot be shown"
    if len(name) > LONGEST:
        return f"its name has {len(name):,} characters, more than {LONGEST}"
    if name in (".", "..") or "/" in name or "\\" in name:
        return "its name is a path"
    return None


def label(name: str) -> str:
    """Any name as short, visible text.

    >>> label("a\\x1b[2J"), len(label("x" * 10_000))
    ('a\\\\x1b[2J', 60)
    """
    text = visible(name[:LONGEST])
    return text if len(text) <= 60 else f"{text[:59]}…"


def sole_claims(clients: Sequence[Candidate]) -> list[Candidate]:
    """In client order; a name that several files claim, up to case and composition, is refused to all of them."""
    claims: dict[str, list[Candidate]] = {}
    for client in clients:
        claims.setdefault(unicodedata.normalize("NFC", client.name).casefold(), []).append(client)
    told = []
    for claimants in claims.values():
        if len(claimants) > 1:
            files = " and ".join(label(each.path.name) for each in claimants[:2])
            names = {each.name for each in claimants}
            why = (
                "several files claim this name"
                if len(names) == 1
                else "its name differs from another's in case only"
            )
            claimants = [replace(each, reason=each.reason or f"{why}: {files}") for each in claimants]
        told += claimants
    return sorted(told, key=lambda each: (natural(each.name), str(each.path)))


def check_names(models: Mapping[str, object]) -> dict[str, str]:
    """Names of models in memory that cannot be clients', with the reason."""
    found = {}
    for name in models:
        if not isinstance(name, str):
            raise CelmError(f"a client's name must be text, not {type(name).__name__}")
        if (reason := unfit(name)) is not None:
            found[name] = reason
    return found


def hidden(entry: Path) -> bool:
    return entry.name.startswith(".") and not entry.name.startswith("..")


def is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def same_file(entry: Path, other: Path) -> bool:
    try:
        return entry.samefile(other)
    except OSError:
        return False
