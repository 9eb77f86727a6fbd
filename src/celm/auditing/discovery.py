"""Rounds and clients in folders of checkpoints.

    clients/a.safetensors              a client is named by the stem of its file
    clients/b/model.safetensors        or by its folder, as `save_pretrained` writes it
    clients/round-001/a.safetensors    several rounds, in the order of their numbers
    clients/round-001/global.*         the model that the clients of this round started from; a file or a folder

The content of a folder is not trusted. A name is text to show, never a path to write to. Links are not followed. If two
files claim a name, also up to case, both are excluded.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from celm.auditing.checkpoint_reader import CHECKPOINT_SUFFIXES, check_regular
from celm.base.client_order import natural_sort_key
from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.text import printable, truncate

_ROUND_PATTERN = re.compile(r"round[-_]?[0-9]{1,9}", re.IGNORECASE)
_GLOBAL_STEM = "global"
_PRETRAINED_FILES = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin")
"""Model files that `save_pretrained` writes into a folder."""
_NON_MODEL_SUFFIXES = (".json", ".md", ".txt", ".toml", ".yaml", ".yml", ".csv", ".html")
"""Suffixes of files that are not reported as ignored."""
_MAX_NAME_LENGTH = 200
_MAX_DISPLAY_LENGTH = 60
_LINK_REASON = "symbolic link, which is not followed"


@dataclass(frozen=True)
class Candidate:
    """A client, its file, and the reason for which the file cannot be used."""

    name: str
    path: Path
    reason: str | None = None


@dataclass(frozen=True)
class DiscoveredRound:
    """The files of one round."""

    name: str
    """Name of the round's folder; empty if the audit has a single round."""
    clients: tuple[Candidate, ...]
    global_file: Path | None = None
    """The global model in the round's folder."""


@dataclass(frozen=True)
class DiscoveredFiles:
    """The files of all rounds, and the names of entries that are not checkpoints."""

    rounds: tuple[DiscoveredRound, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class _FolderContents:
    """The entries of one folder, sorted by what they are."""

    clients: tuple[Candidate, ...]
    global_files: tuple[Path, ...] = ()
    ignored: tuple[str, ...] = ()


def discover(paths: Sequence[Path], global_file: Path) -> DiscoveredFiles:
    """Find rounds and clients in folders and files that the operator named.

    `global_file` is the global model that the operator named; it is not a client. A link that the operator named is
    followed; a link inside a folder is not.
    """
    contents_by_round: dict[str, list[_FolderContents]] = {}
    ignored: list[str] = []
    for path in paths:
        with os_errors_as_celm_error(path, "read"):
            is_directory = stat.S_ISDIR(path.stat().st_mode)
        if not is_directory:
            client = make_candidate(path.stem, path.resolve())
            contents_by_round.setdefault("", []).append(_FolderContents((client,)))
            continue
        entries = _sorted_entries(path)
        round_folders = [
            entry for entry in entries if _ROUND_PATTERN.fullmatch(entry.name) and _is_folder(entry)
        ]
        entries_by_round = {folder.name: _sorted_entries(folder) for folder in round_folders} or {"": entries}
        for round_name, round_entries in entries_by_round.items():
            contents = _classify(round_entries, bool(round_name), global_file)
            contents_by_round.setdefault(round_name, []).append(contents)
            ignored += contents.ignored
        if round_folders:
            others = [entry for entry in entries if entry not in round_folders and not _is_hidden(entry)]
            ignored += [display_label(entry.name) for entry in others]
    if "" in contents_by_round and len(contents_by_round) > 1:
        raise CelmError("--clients names rounds and clients without a round", "audit them one by one")
    rounds = tuple(
        _join_folders(name, contents_by_round[name])
        for name in sorted(contents_by_round, key=natural_sort_key)
    )
    if not any(round.clients for round in rounds):
        raise CelmError(f"no client models in {', '.join(map(str, paths))}", _expected_files(paths))
    return DiscoveredFiles(rounds, tuple(ignored))


def _sorted_entries(folder: Path) -> list[Path]:
    with os_errors_as_celm_error(folder, "read"):
        return sorted(folder.iterdir(), key=lambda entry: (natural_sort_key(entry.name), entry.name))


def _classify(entries: Iterable[Path], is_round: bool, named_global: Path) -> _FolderContents:
    """Sort the entries of a folder into clients, global models and ignored entries."""
    clients: list[Candidate] = []
    global_files: list[Path] = []
    ignored: list[str] = []
    for entry in entries:
        model_files = find_model_files(entry)
        is_named_global = any(
            not file.is_symlink() and _same_file(file, named_global) for file in model_files
        )
        if _is_hidden(entry) or is_named_global:
            continue
        name = entry.name if _is_folder(entry) else entry.stem
        if not model_files:
            if _is_folder(entry) or entry.suffix.lower() not in _NON_MODEL_SUFFIXES:
                ignored.append(display_label(entry.name))
        elif name == _GLOBAL_STEM and not is_round:
            ignored.append(display_label(entry.name))  # the operator named the global model
        elif name == _GLOBAL_STEM:
            global_files.append(_single_global(entry, model_files))
        elif len(model_files) > 1:
            reason = f"folder with {len(model_files)} models, expected 1"
            clients.append(Candidate(display_label(name), entry, reason))
        else:
            clients.append(make_candidate(name, model_files[0]))
    return _FolderContents(tuple(clients), tuple(global_files), tuple(ignored))


def find_model_files(entry: Path) -> list[Path]:
    """Return the model files of an entry: the entry itself, or the files of `save_pretrained` in its folder."""
    if _is_folder(entry):
        return [entry / name for name in _PRETRAINED_FILES if os.path.lexists(entry / name)]
    return [entry] if entry.suffix.lower() in CHECKPOINT_SUFFIXES else []


def _single_global(entry: Path, model_files: Sequence[Path]) -> Path:
    """Return the file of a round's global model. Several files, or a link, end the audit."""
    if len(model_files) > 1:
        raise CelmError(f"global model {entry}: folder with {len(model_files)} models, expected 1")
    if model_files[0].is_symlink():
        raise CelmError(f"global model {model_files[0]}: {_LINK_REASON}")
    return model_files[0]


def _join_folders(name: str, folders: Sequence[_FolderContents]) -> DiscoveredRound:
    """Join the folders of one round. Two global models end the audit."""
    global_files = [file for folder in folders for file in folder.global_files]
    if len(global_files) > 1:
        raise CelmError(f"two global models in {name}: {global_files[0]} and {global_files[1]}", "remove one")
    clients = [client for folder in folders for client in folder.clients]
    return DiscoveredRound(name, tuple(_reject_duplicate_names(clients)), next(iter(global_files), None))


def _expected_files(paths: Sequence[Path]) -> str:
    """Return a hint that names the expected files and, if there is one, a folder to try."""
    hint = f"expected files that end in {', '.join(CHECKPOINT_SUFFIXES)}"
    folders = [path for path in paths if path.is_dir()]
    subfolders = [entry for folder in folders for entry in _sorted_entries(folder) if _is_folder(entry)]
    if not subfolders:
        return hint
    return f"{hint}, or folders with one of {', '.join(_PRETRAINED_FILES)}; did you mean {subfolders[0]}?"


def make_candidate(name: str, path: Path) -> Candidate:
    """Check the name and the type of a client's file. Nothing is read."""
    reason = _name_error(name)
    label = name if reason is None else display_label(name)
    if reason is None and path.is_symlink():
        reason = _LINK_REASON
    if reason is None:
        try:
            check_regular(path.stat().st_mode)
        except CelmError as error:
            reason = str(error)
        except OSError as error:
            reason = f"cannot read the file: {(error.strerror or str(error)).lower()}"
    return Candidate(label, path, reason)


def _name_error(name: str) -> str | None:
    """Return the reason for which a name cannot be a client's; None if it can."""
    if not name or not name.strip() or not name.isprintable():
        return "unprintable name"
    if len(name) > _MAX_NAME_LENGTH:
        return f"name is too long: {len(name):,} characters, at most {_MAX_NAME_LENGTH}"
    if name in (".", "..") or "/" in name or "\\" in name:
        return "name is a path"
    return None


def display_label(name: str) -> str:
    """Return any name as short, printable text.

    >>> display_label("a\\x1b[2J"), len(display_label("x" * 10_000))
    ('a\\\\x1b[2J', 60)
    """
    return truncate(printable(name[:_MAX_NAME_LENGTH]), _MAX_DISPLAY_LENGTH)


def _reject_duplicate_names(clients: Sequence[Candidate]) -> list[Candidate]:
    """Return the clients in client order. If several files claim a name, up to case and composition, mark them all."""
    claims: dict[str, list[Candidate]] = {}
    for client in clients:
        claims.setdefault(unicodedata.normalize("NFC", client.name).casefold(), []).append(client)
    checked: list[Candidate] = []
    for claimants in claims.values():
        if len(claimants) > 1:
            files = " and ".join(display_label(claimant.path.name) for claimant in claimants[:2])
            is_same_name = len({claimant.name for claimant in claimants}) == 1
            conflict = "several files claim this name" if is_same_name else "names differ in case only"
            claimants = [
                replace(claimant, reason=claimant.reason or f"{conflict}: {files}") for claimant in claimants
            ]
        checked += claimants
    return sorted(checked, key=lambda client: (natural_sort_key(client.name), str(client.path)))


def find_invalid_names(models: Mapping[str, object]) -> dict[str, str]:
    """Return the invalid names of models in memory, with reasons."""
    reasons = {}
    for name in models:
        if not isinstance(name, str):
            raise CelmError(f"client name of type {type(name).__name__}: expected text")
        if (reason := _name_error(name)) is not None:
            reasons[name] = reason
    return reasons


def _is_hidden(entry: Path) -> bool:
    return entry.name.startswith(".") and not entry.name.startswith("..")


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _same_file(entry: Path, other: Path) -> bool:
    try:
        return entry.samefile(other)
    except OSError:
        return False
