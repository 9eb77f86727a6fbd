"""Images sorted into one folder per class: which files there are, and that none leads out of the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import explained
from celm.data.files.images import SUFFIXES


def class_folders(root: Path, folder: Path) -> dict[str, list[Path]]:
    """Class name to its image files, both sorted; folders without images are no classes.

    Hidden files and files that are no images are skipped. A link that leaves `root` is refused: a folder
    that was handed over must not be able to pull in what lies outside it.
    """
    found: dict[str, list[Path]] = {}
    with explained(folder, "read"):
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            inside(root, entry)
            if images := list(images_below(root, entry)):
                found[entry.name] = images
    return found


def images_below(root: Path, folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=raise_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            inside(root, Path(parent) / name)
        for name in sorted(files):
            if not name.startswith(".") and name.lower().endswith(SUFFIXES):
                yield inside(root, Path(parent) / name)


def raise_error(error: OSError) -> None:
    raise error


def inside(root: Path, path: Path) -> Path:
    """The same path, if it is what it seems."""
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        raise CelmError(f"{path} is a link that leaves {root}", "copy the data into the folder")
    return path


def contents(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        with explained(path, "read"):
            yield str(path), path.read_bytes()
