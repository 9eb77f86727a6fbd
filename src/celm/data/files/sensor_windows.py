"""The recordings of UCI HAPT: a window of 128 samples at every 64th sample of a recording.

A window counts if one label covers all its samples. `labels.txt` has one labelled interval in each line: experiment,
person, class, first and last sample. The archive is read in place; nothing is extracted.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.text import single_line

WINDOW_LENGTH = 128
WINDOW_STEP = 64
NUM_CHANNELS = 6
_MAX_FILE_BYTES = 20_000_000
_PERSONS = 30
_SIGNAL_NAME = re.compile(r"acc_exp(\d+)_user(\d+)\.txt")

ReadMember = Callable[[str], str]


@dataclass(frozen=True)
class SensorWindows:
    """Windows float16 `[n, 6, 128]` in order of person and time, class 1-12 and person 1-30 of each."""

    x: NDArray[np.float16]
    y: NDArray[np.int64]
    client: NDArray[np.int64]

    def validate(self, source_name: str, classes: int) -> SensorWindows:
        """Return itself, or raise an error if the arrays do not fit each other or have unexpected values."""
        shape = (len(self.y), NUM_CHANNELS, WINDOW_LENGTH)
        if self.x.shape != shape or self.client.shape != self.y.shape or not len(self.y):
            raise CelmError(
                f"{source_name} is damaged: its arrays have shapes {self.x.shape} and {self.y.shape}"
            )
        for what, values, highest in (("class", self.y, classes), ("person", self.client, _PERSONS)):
            if values.min() < 1 or values.max() > highest:
                raise CelmError(f"{source_name} is damaged: it has a {what} outside 1 to {highest}")
        if not np.isfinite(self.x).all():
            raise CelmError(f"{source_name} is damaged: it has values that are not finite")
        return self


def read_window_file(path: Path) -> SensorWindows:
    """Read windows that were cut before: an `.npz` with the arrays `x`, `y` and `client`."""
    try:
        with os_errors_as_celm_error(path, "read"), path.open("rb") as file:
            with np.load(file, allow_pickle=False) as arrays:
                x, y, client = (arrays[name] for name in ("x", "y", "client"))
            return SensorWindows(x.astype(np.float16), y.astype(np.int64), client.astype(np.int64))
    except (
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise CelmError(f"{path} is damaged: {single_line(str(error))}") from error


def read_recording_archive(path: Path) -> SensorWindows:
    """Cut windows from the recordings in UCI's archive."""
    try:
        with os_errors_as_celm_error(path, "read"), zipfile.ZipFile(path) as archive:
            members = {
                name.rpartition("/")[2]: name for name in archive.namelist() if "RawData/" in f"/{name}"
            }

            def read(name: str) -> str:
                info = archive.getinfo(members[name])
                if info.file_size > _MAX_FILE_BYTES:
                    raise CelmError(f"{path} is damaged: {name} is too large")
                return archive.read(info).decode("ascii")

            return _cut_recordings(str(path), list(members), read)
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError, NotImplementedError) as error:
        raise CelmError(f"{path} is damaged: {single_line(str(error))}") from error


def _cut_recordings(source_name: str, names: list[str], read: ReadMember) -> SensorWindows:
    recordings = sorted(
        (int(match[2]), int(match[1]), name) for name in names if (match := _SIGNAL_NAME.fullmatch(name))
    )
    if "labels.txt" not in names or not recordings:
        raise CelmError(f"{source_name} is damaged: it has no recordings with labels")
    labels = _parse_table(f"{source_name}, labels.txt", read("labels.txt"), 5).astype(np.int64)
    windows, classes, persons = [], [], []
    for person, experiment, name in recordings:
        gyroscope = name.replace("acc_", "gyro_", 1)
        if gyroscope not in names:
            raise CelmError(f"{source_name} is damaged: it has no {gyroscope}")
        parts = [_parse_table(f"{source_name}, {part}", read(part), 3) for part in (name, gyroscope)]
        if len(parts[0]) != len(parts[1]):
            raise CelmError(f"{source_name} is damaged: {name} and {gyroscope} differ in length")
        intervals = labels[(labels[:, 0] == experiment) & (labels[:, 1] == person), 2:]
        starts, of_class = cut_windows(intervals, len(parts[0]))
        signal = np.concatenate(parts, axis=1).T
        windows += [signal[:, start : start + WINDOW_LENGTH] for start in starts]
        classes.append(of_class)
        persons.append(np.full(len(starts), person))
    if not windows:
        raise CelmError(f"{source_name} is damaged: no label covers a whole window")
    return SensorWindows(
        np.stack(windows).astype(np.float16), np.concatenate(classes), np.concatenate(persons)
    )


def cut_windows(intervals: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and class of each window of a recording; `intervals` are rows of class, first and last sample.

    >>> cut_windows(np.array([[5, 250, 500], [7, 501, 900]]), 1000)
    (array([256, 320, 512, 576, 640, 704, 768]), array([5, 5, 7, 7, 7, 7, 7]))
    """
    starts = np.arange(0, length - WINDOW_LENGTH + 1, WINDOW_STEP)
    of_class = np.zeros(len(starts), dtype=np.int64)
    for label, first, last in intervals:
        of_class[(starts >= first) & (starts + WINDOW_LENGTH - 1 <= last)] = label
    return starts[of_class > 0], of_class[of_class > 0]


def _parse_table(source_name: str, text: str, columns: int) -> NDArray[np.float64]:
    try:
        return np.loadtxt(io.StringIO(text), ndmin=2).reshape(-1, columns)
    except ValueError as error:
        raise CelmError(f"{source_name} is damaged: {single_line(str(error))}") from error
