"""Where a dataset's files are: `CELM_DATA`, then system packages; what is in neither is downloaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import explained
from celm.data.facts import Facts, Form
from celm.data.files.parquet import missing_shard

SYSTEM = Path("/usr/share/datasets")
"""Where Debian's `dataset-*` packages install."""


@dataclass(frozen=True)
class Found:
    """The files of a dataset, by part."""

    folder: Path
    kind: str
    files: Mapping[str, tuple[Path, ...]]

    def one(self, part: str) -> Path:
        return self.files[part][0]

    @property
    def all_files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(path for paths in self.files.values() for path in paths))


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path there is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "celm"


def data_root() -> Path:
    """The folder with one folder per dataset, which is also where downloads go."""
    named = os.environ.get("CELM_DATA", "")
    return Path(named).expanduser() if named else cache_root()


def places(facts: Facts) -> list[Path]:
    """Folders to look in, in order."""
    system = [SYSTEM / facts.package] if facts.package else []
    return [data_root() / facts.name, *system]


def find(facts: Facts) -> Found | None:
    for folder in places(facts):
        found = find_in(folder, facts.forms)
        if found is not None:
            return found
    return None


def find_in(folder: Path, forms: Sequence[Form]) -> Found | None:
    """The first form whose parts are all in `folder`."""
    with explained(folder, "look into"):
        if not folder.is_dir():
            return None
        for form in forms:
            files = {part: matches(folder, patterns) for part, patterns in form.parts.items()}
            if not all(files.values()):
                continue
            for part, paths in files.items():
                if (lost := missing_shard(paths)) is not None:
                    raise CelmError(f"{folder} is incomplete: the {part} file {lost} is missing")
            return Found(folder, form.kind, files)
    return None


def matches(folder: Path, patterns: Sequence[str]) -> tuple[Path, ...]:
    for pattern in patterns:
        # Sorted, because the order of rows must not depend on the file system.
        found = sorted(p for p in folder.glob(pattern) if p.is_file() and not hidden(p, folder))
        if found:
            return tuple(found)
    return ()


def hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def looked_for(facts: Facts) -> str:
    """What was looked for and where, for an error message."""
    wanted = " or ".join(next(iter(form.parts.values()))[0] for form in facts.forms)
    return f"{wanted} in {' and '.join(str(place) for place in places(facts))}"
