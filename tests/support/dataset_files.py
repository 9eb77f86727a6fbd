"""Small files in the formats of official datasets."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import wave
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import scipy.io

from celm.data.files.cifar_binary import CIFAR10, CifarFormat

# The first lines of HAPT's labels.txt: experiment 1, person 1.
HAPT_INTERVALS = """1 1 5 250 1232
1 1 7 1233 1392
1 1 4 1393 2194
1 1 8 2195 2359
1 1 5 2360 3374
1 1 11 3375 3662
1 1 6 3663 4538
1 1 10 4539 4735
1 1 4 4736 5667
1 1 9 5668 5859
1 1 6 5860 6786
1 1 12 6787 6977
"""


def write_hapt_archive(path: Path, changes: Mapping[str, str | None] | None = None) -> np.ndarray:
    """Write an archive of one recording; return its signal `[samples, 6]`."""
    signal = np.random.RandomState(0).normal(size=(7000, 6)).round(6)
    members: dict[str, str | None] = {
        "RawData/labels.txt": HAPT_INTERVALS,
        "RawData/acc_exp01_user01.txt": _to_text(signal[:, :3]),
        "RawData/gyro_exp01_user01.txt": _to_text(signal[:, 3:]),
        "Train/X_train.txt": "1 2 3",
        **(changes or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            if text is not None:
                archive.writestr(name, text)
    return signal


def _to_text(values: np.ndarray) -> str:
    return "".join(" ".join(str(float(value)) for value in row) + "\n" for row in values)


def tone(frequency: float, seconds: float = 0.4) -> np.ndarray:
    return 8000 * np.sin(2 * np.pi * frequency * np.arange(int(8000 * seconds)) / 8000)


def wav_bytes(samples: np.ndarray, rate: int = 8000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def fsdd_recordings() -> dict[str, bytes]:
    """Return recordings of two digits by two speakers, half of them for tests."""
    return {
        f"{digit}_{speaker}_{number}.wav": wav_bytes(tone(300 * (digit + 1)))
        for digit in (0, 9)
        for speaker in ("george", "theo")
        for number in (0, 4, 5, 49)
    }


def write_fsdd_archive(path: Path, recordings: Mapping[str, bytes] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("free-spoken-digit-dataset-1.0.10/README.md", "text")
        for name, content in (fsdd_recordings() if recordings is None else recordings).items():
            archive.writestr(f"free-spoken-digit-dataset-1.0.10/recordings/{name}", content)


def cifar_batches(layout: CifarFormat) -> dict[str, bytes]:
    """Return the content of each file: 4 records with random pixels and valid labels."""
    generator = np.random.RandomState(0)
    contents = {}
    for name in layout.files:
        records = generator.randint(0, 256, (4, layout.labels + 3072)).astype(np.uint8)
        records[:, 0] %= 10
        records[:, layout.labels - 1] %= layout.classes
        contents[name] = records.tobytes()
    return contents


def write_cifar_archive(folder: Path, layout: CifarFormat) -> None:
    """Write the official archive, and into it a file that would be extracted outside its folder."""
    number = 10 if layout is CIFAR10 else 100
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"cifar-{number}-binary.tar.gz", "w:gz") as archive:
        for name, content in {"../../escape.bin": b"1", **cifar_batches(layout)}.items():
            entry = tarfile.TarInfo(f"cifar-{number}-binary/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_mnist_files(folder: Path) -> None:
    generator = np.random.RandomState(0)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        for kind, values in (
            ("images-idx3", generator.randint(0, 256, (6, 28, 28))),
            ("labels-idx1", np.arange(6)),
        ):
            header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            content = gzip.compress(header + values.astype(np.uint8).tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(content)


def write_svhn_files(folder: Path) -> np.ndarray:
    """Write three digits, 1, 9 and 0, twice; return their images `[32, 32, 3, 3]`."""
    images = np.random.RandomState(0).randint(0, 256, (32, 32, 3, 3)).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        labels = np.array([[1], [9], [10]], dtype=np.uint8)
        scipy.io.savemat(folder / f"{part}_32x32.mat", {"X": images, "y": labels}, do_compression=True)
    return images
