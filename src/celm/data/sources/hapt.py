"""UCI HAPT (Reyes-Ortiz, Oneto, Samà, Parra, Anguita 2015): a phone's sensors on 30 people.

https://doi.org/10.24432/C54G7M, CC BY 4.0. An input is 2.56 s of the accelerometer (in g) and of the gyroscope (in
rad/s) at 50 Hz, `[6, 128]`, cut from the raw recordings and standardised by constants.

For tests are the last fifth of each person's windows of an activity, and every fifth window of a transition, which
most people have once or twice. Windows overlap by half, so a training window that shares samples with a test window is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, FileLayout, RemoteFile
from celm.data.files.cache import load_or_compute
from celm.data.files.ensure import ensure_files
from celm.data.files.locate import LocatedFiles
from celm.data.files.sensor_windows import (
    NUM_CHANNELS,
    WINDOW_LENGTH,
    WINDOW_STEP,
    SensorWindows,
    read_recording_archive,
    read_window_file,
)

HAPT_CLASSES = (
    "walking",
    "walking upstairs",
    "walking downstairs",
    "sitting",
    "standing",
    "laying",
    "stand to sit",
    "sit to stand",
    "sit to lie",
    "lie to sit",
    "stand to lie",
    "lie to stand",
)
_NUM_ACTIVITIES = 6
_ARCHIVE = "hapt.zip"
_ARCHIVE_SHA256 = "sha256:4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09"
_MEAN = (0.8044, 0.0325, 0.0899, 0.0043, -0.001, -0.0092)
_STD = (0.4122, 0.4035, 0.3468, 0.4192, 0.3952, 0.2729)
"""Mean and standard deviation of each channel over all people, as constants so that they never change."""


@dataclass(frozen=True)
class Hapt(DatasetSource):
    """Activities of 30 people from phone sensors (HAPT), 12 classes.

    There are 10,361 windows of 6 channels x 128 samples. Six classes are rare transitions, such as sit to stand.
    """

    defaults: ClassVar[Defaults] = Defaults(model="cnn1d", split="natural", rounds=50, lr=0.1)
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="hapt",
        shape=(NUM_CHANNELS, WINDOW_LENGTH),
        classes=12,
        licence="CC BY 4.0",
        counts=((8153, 1989),),
        clients=tuple(f"person-{person}" for person in range(1, 31)),
        layouts=(
            FileLayout("windows", {"windows": ("hapt_windows.npz",)}),
            FileLayout("archive", {"archive": (_ARCHIVE,)}),
        ),
        remote_files=(
            RemoteFile(
                _ARCHIVE,
                "https://archive.ics.uci.edu/static/public/341/"
                "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
                79596192,
                _ARCHIVE_SHA256,
            ),
        ),
        digests={
            _ARCHIVE: (_ARCHIVE_SHA256,),
            "hapt_windows.npz": ("sha256:7f9435216f8d6037730217546140fa5d350ddd304d85f5a97c5565fa15f9d2c3",),
        },
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        windows = _read_windows(located)
        train, test = hold_out_windows(windows)
        scale = np.array(_STD, dtype=np.float32)[:, None]
        inputs = torch.from_numpy(
            (windows.x.astype(np.float32) - np.array(_MEAN, np.float32)[:, None]) / scale
        )
        labels = torch.from_numpy(windows.y - 1)
        return Dataset(
            name="hapt",
            train_inputs=inputs[train],
            train_labels=labels[train],
            test_inputs=inputs[test],
            test_labels=labels[test],
            classes=HAPT_CLASSES,
            client_ids=tuple(f"person-{person}" for person in windows.client[train]),
        )


def _read_windows(located: LocatedFiles) -> SensorWindows:
    classes = len(HAPT_CLASSES)
    if located.kind == "windows":
        path = located.path("windows")
        return read_window_file(path).validate(str(path), classes)
    path = located.path("archive")

    def cut() -> dict[str, torch.Tensor]:
        windows = read_recording_archive(path).validate(str(path), classes)
        return {name: torch.from_numpy(getattr(windows, name)) for name in ("x", "y", "client")}

    arrays = load_or_compute("hapt", [path], {"step": WINDOW_STEP}, cut)
    return SensorWindows(**{name: tensor.numpy() for name, tensor in arrays.items()})


def hold_out_windows(windows: SensorWindows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return training rows and test rows, without training windows that share samples with a test window."""
    is_test = np.zeros(len(windows.y), dtype=bool)
    for label in np.unique(windows.y):
        if label > _NUM_ACTIVITIES:
            is_test[np.flatnonzero(windows.y == label)[4::5]] = True
            continue
        for person in np.unique(windows.client):
            rows = np.flatnonzero((windows.client == person) & (windows.y == label))
            is_test[rows[len(rows) - len(rows) // 5 :]] = True
    # Window i overlaps window i + 1 of the same recording by half.
    overlaps_next = (windows.x[:-1, :, WINDOW_STEP:] == windows.x[1:, :, :WINDOW_STEP]).all(axis=(1, 2))
    shares_samples = np.zeros(len(windows.y), dtype=bool)
    shares_samples[:-1] |= overlaps_next & is_test[1:]
    shares_samples[1:] |= overlaps_next & is_test[:-1]
    return np.flatnonzero(~is_test & ~shares_samples), np.flatnonzero(is_test)
