"""Which datasets are on this machine, getting them, and checking their files: what `celm data` shows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from celm.base.errors import CelmError
from celm.data.catalogue import datasets
from celm.data.facts import Facts
from celm.data.files import parquet
from celm.data.files.checksum import matches_digest
from celm.data.files.cifar_binary import RECORD, TEST, TRAIN
from celm.data.files.download import Progress
from celm.data.files.fetch import fetch
from celm.data.files.idx import read_idx_sizes
from celm.data.files.locate import Found, find, looked_for


class Origin(StrEnum):
    BUNDLED = "bundled"
    DOWNLOAD = "download"
    BY_HAND = "by hand"
    """Cannot be downloaded: the files have to be put in place."""
    YOURS = "yours"


class Checksum(StrEnum):
    OK = "ok"
    UNKNOWN = "unknown"
    BAD = "bad"


@dataclass(frozen=True)
class Holding:
    """One row of `celm data list`; what is not known is None."""

    name: str
    present: bool
    origin: Origin
    where: Path | None
    train: int | None
    test: int | None
    shape: tuple[int, ...] | None
    classes: int | None
    download_size: int | None
    licence: str | None
    problem: str | None = None


@dataclass(frozen=True)
class CheckedFile:
    path: Path
    size: int
    checksum: Checksum


@dataclass(frozen=True)
class Report:
    """What `celm data check` found; `problems` is empty when all is well."""

    name: str
    folder: Path
    kind: str
    files: tuple[CheckedFile, ...]
    rows: tuple[int, int] | None
    """(train, test); None where they cannot be counted."""
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def listing() -> list[Holding]:
    return [holding(name, facts_of(name)) for name in datasets.names()]


def get(name: str, progress: Progress | None = None) -> Path:
    """The folder with the dataset's files, downloaded if need be."""
    facts = facts_of(name)
    if facts is None:
        raise CelmError(f"dataset '{name}' is read from your own folder; there is nothing to get")
    if not facts.forms:
        return bundled()
    found = find(facts) or fetch(facts, progress)
    return found.folder


def check(name: str) -> Report:
    """Checksums and row counts of the files that are there; a dataset that is not there is an error."""
    facts = facts_of(name)
    if facts is None:
        raise CelmError(f"dataset '{name}' is read from your own folder; load it to check it")
    if not facts.forms:
        return Report(name, bundled(), "bundled", (), facts.counts[0], ())
    found = find(facts)
    if found is None:
        hint = (
            f"run `celm data get {name}`"
            if facts.can_download
            else "set CELM_DATA to the folder that holds it"
        )
        raise CelmError(f"dataset '{name}' is not on this machine: looked for {looked_for(facts)}", hint)
    files = tuple(CheckedFile(path, path.stat().st_size, checksum(path, facts)) for path in found.all_files)
    problems = [f"{file.path} has a wrong checksum" for file in files if file.checksum is Checksum.BAD]
    counts: tuple[int, int] | None = None
    try:
        counts = rows(found)
    except CelmError as error:
        problems.append(str(error))
    if counts is not None and counts not in facts.counts:
        train, test = facts.counts[0]
        problems.append(f"{found.folder} has {counts[0]} + {counts[1]} rows, not {train} + {test}")
    return Report(name, found.folder, found.kind, files, counts, tuple(problems))


def facts_of(name: str) -> Facts | None:
    facts: Facts | None = getattr(datasets.load(name), "facts", None)
    return facts


def holding(name: str, facts: Facts | None) -> Holding:
    if facts is None:
        return Holding(name, False, Origin.YOURS, None, None, None, None, None, None, None)
    where, problem = None, None
    train, test = facts.counts[0]
    try:
        found = find(facts) if facts.forms else None
        where = bundled() if not facts.forms else found.folder if found else None
        train, test = (rows(found) if found else None) or facts.counts[0]
    except CelmError as error:
        problem = str(error)
    origin = Origin.BUNDLED if not facts.forms else Origin.DOWNLOAD if facts.can_download else Origin.BY_HAND
    return Holding(
        name,
        where is not None,
        origin,
        where,
        train,
        test,
        facts.shape,
        facts.classes,
        facts.download_size,
        facts.licence,
        problem,
    )


def bundled() -> Path:
    """Where scikit-learn keeps the data that comes with it; found without importing it."""
    from importlib.util import find_spec

    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise CelmError("scikit-learn is not installed", "pip install scikit-learn")
    return Path(spec.origin).parent / "datasets" / "data"


def checksum(path: Path, facts: Facts) -> Checksum:
    """Bad where the maker's own file has changed; a parquet file may come from anywhere: unknown."""
    known = facts.digests.get(path.name, ())
    if not known:
        return Checksum.UNKNOWN
    if any(matches_digest(path, digest) for digest in known):
        return Checksum.OK
    return Checksum.UNKNOWN if path.suffix == ".parquet" else Checksum.BAD


def rows(found: Found) -> tuple[int, int] | None:
    """(train, test) rows as the files' own headers say; None for archives, which have to be unpacked."""
    if found.kind == "parquet":
        return parquet.count(found.files["train"]), parquet.count(found.files["test"])
    if found.kind == "idx":
        train, test = (read_idx_sizes(found.one(part), rank=1)[0] for part in ("train_labels", "test_labels"))
        return train, test
    if found.kind == "batches":
        train, test = (
            sum(found.one(name).stat().st_size for name in part) // RECORD for part in (TRAIN, TEST)
        )
        return train, test
    return None
