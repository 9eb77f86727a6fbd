"""Image files sorted into one folder per class. A link that leaves the dataset's folder is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.data.files.images import IMAGE_SUFFIXES


def list_class_images(root: Path, folder: Path) -> dict[str, list[Path]]:
    """Return the image files of each class, both sorted by name; a folder without images is not a class.

    Hidden files and files of other types are skipped. A link that leaves `root` is an error: a dataset that someone
    else prepared must not include files outside its folder.
    """
    images_by_class: dict[str, list[Path]] = {}
    with os_errors_as_celm_error(folder, "read"):
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            check_inside(root, entry)
            if images := list(_iter_images(root, entry)):
                images_by_class[entry.name] = images
    return images_by_class


def check_inside(root: Path, path: Path) -> Path:
    """Return `path`, or raise an error if it is a link that leaves `root`."""
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        raise CelmError(f"{path} is a link that leaves {root}", "copy the data into the folder")
    return path


def read_contents(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file."""
    for path in paths:
        with os_errors_as_celm_error(path, "read"):
            yield str(path), path.read_bytes()


def _iter_images(root: Path, folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=_raise_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            check_inside(root, Path(parent) / name)
        for name in sorted(files):
            if not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES):
                yield check_inside(root, Path(parent) / name)


def _raise_error(error: OSError) -> None:
    raise error
