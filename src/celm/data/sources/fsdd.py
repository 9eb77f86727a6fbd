"""Free Spoken Digit Dataset (Jackson, Souza, Flaks, Pan, Nicolas, Thite 2018): 6 speakers, 50 recordings of each digit.

https://github.com/Jakobovski/free-spoken-digit-dataset, version 1.0.10, CC BY-SA 4.0. An input is a log-mel
spectrogram of 32 bands x 32 frames. Recordings 0 to 4 of each digit and speaker are for tests, as its makers say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from celm.base.errors import CelmError
from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, FileLayout, RemoteFile, parquet_layout
from celm.data.files import parquet
from celm.data.files.cache import load_or_compute
from celm.data.files.ensure import ensure_files
from celm.data.files.locate import LocatedFiles
from celm.data.files.spoken_digits import SPECTROGRAM_SIZE, read_recordings
from celm.data.raw_images import RawImages, read_parquet_images

_SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
_NUM_TEST_RECORDINGS = 5
_ARCHIVE = "free-spoken-digit-dataset-1.0.10.zip"
_ARCHIVE_SHA256 = "sha256:c680098f5d2355ba7cc4bd8b0ca9e0a24c00ebe3b4c552208889a4d28d4fbc2b"


@dataclass(frozen=True)
class Fsdd(DatasetSource):
    """Spoken digits of 6 speakers (FSDD), log-mel, 10 classes.

    There are 2,700 training and 300 test recordings, as spectrograms of 32 bands x 32 frames.
    """

    defaults: ClassVar[Defaults] = Defaults(model="cnn", split="natural", rounds=50, lr=0.1)
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="fsdd",
        shape=(1, SPECTROGRAM_SIZE, SPECTROGRAM_SIZE),
        classes=10,
        licence="CC BY-SA 4.0",
        counts=((2700, 300),),
        clients=_SPEAKERS,
        layouts=(parquet_layout(), FileLayout("archive", {"archive": (_ARCHIVE,)})),
        remote_files=(
            RemoteFile(
                _ARCHIVE,
                "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.zip",
                16419872,
                _ARCHIVE_SHA256,
            ),
        ),
        digests={
            _ARCHIVE: (_ARCHIVE_SHA256,),
            "train.parquet": ("sha256:c95e1adfdc083ddf87943a832590653b20bfbdd8636bf4b5f548d4a321bbd54b",),
            "test.parquet": ("sha256:3c33e4292ec81e385e01c222d8af7298f989e75e92d4197affc364ba6bffe305",),
        },
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        if located.kind == "parquet":
            raw = read_parquet_images(located, self.info.name, channels=1)
            speakers = tuple(str(name) for name in parquet.read_column(located.files["train"], "client"))
        else:
            raw, speakers = _read_archive(located)
        raw.validate(located.folder, self.info.classes, self.info.shape)
        unknown = sorted(set(speakers) - set(_SPEAKERS))
        if unknown or len(speakers) != len(raw.train_labels):
            raise CelmError(f"{located.folder} is damaged: it has unknown speakers: {', '.join(unknown)}")
        return raw.to_dataset(
            self.info.name, tuple("0123456789"), mean=(0.462,), std=(0.229,), client_ids=speakers
        )


def _read_archive(located: LocatedFiles) -> tuple[RawImages, tuple[str, ...]]:
    path = located.path("archive")

    def compute() -> dict[str, torch.Tensor]:
        recordings = read_recordings(path)
        unknown = sorted({speaker for _, speaker, _ in recordings} - set(_SPEAKERS))
        if unknown:
            raise CelmError(f"{path} is damaged: it has unknown speakers: {', '.join(unknown)}")
        keys = [(digit, _SPEAKERS.index(speaker), number) for digit, speaker, number in recordings]
        return {
            "images": torch.from_numpy(np.stack(list(recordings.values()))).unsqueeze(1),
            "keys": torch.tensor(keys, dtype=torch.int64),
        }

    arrays = load_or_compute("fsdd", [path], {"size": SPECTROGRAM_SIZE}, compute)
    images, (digits, speakers, numbers) = arrays["images"], arrays["keys"].unbind(1)
    is_test = numbers < _NUM_TEST_RECORDINGS
    raw = RawImages(images[~is_test], digits[~is_test], images[is_test], digits[is_test])
    return raw, tuple(_SPEAKERS[i] for i in speakers[~is_test].tolist())
