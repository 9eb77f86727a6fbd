"""An idx file inside a zip archive, read in place: nothing is extracted, so nothing can land astray."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.base.files import explained
from celm.data.files.idx import parse_idx

MOST_BYTES = 1 << 29
"""Of one compressed member; EMNIST's largest is a fifth of it."""


def read_idx_member(path: Path, name: str, rank: int) -> NDArray[np.uint8]:
    """The idx file `name`, in whatever folder of the archive it is."""
    with explained(path, "read"):
        try:
            with zipfile.ZipFile(path) as archive:
                entry = next((e for e in archive.infolist() if PurePosixPath(e.filename).name == name), None)
                if entry is None:
                    raise CelmError(f"{path} has no {name} in it")
                if entry.file_size > MOST_BYTES:
                    raise CelmError(f"{path} is damaged: {name} in it is too large")
                content = archive.read(entry)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            RuntimeError,
            ValueError,
        ) as error:
            raise CelmError(f"{path} is damaged: {error}") from error
    return parse_idx(io.BytesIO(content), f"{path}, {name}", rank)
