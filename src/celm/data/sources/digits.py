"""Optical recognition of handwritten digits (Alpaydin, Kaynak 1998), as bundled with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from celm.data.dataset import Dataset, DatasetSource, Defaults, hold_out
from celm.data.dataset_info import DatasetInfo

_MEAN, _STD = 0.30577, 0.37656
"""Mean and standard deviation of the training pixels on 0 .. 1, as constants so that they never change."""


@dataclass(frozen=True)
class Digits(DatasetSource):
    """Handwritten digits of scikit-learn, 8x8 grey, 10 classes.

    There are 1,797 images.
    """

    defaults: ClassVar[Defaults] = Defaults(
        model="mlp", split="frm", split_options={"kind": "copy_global"}, min_clients=3, rounds=100
    )
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="digits", shape=(1, 8, 8), classes=10, licence="CC BY 4.0", counts=((1438, 359),)
    )

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        labels = bunch.target.astype(np.int64)
        pixels = torch.from_numpy(bunch.images.astype(np.float32) / 16).unsqueeze(1)
        train, test = hold_out(labels)

        def normalise_rows(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
            return (pixels[torch.from_numpy(rows)] - _MEAN) / _STD

        return Dataset(
            name="digits",
            train_inputs=normalise_rows(train),
            train_labels=torch.from_numpy(labels[train]),
            test_inputs=normalise_rows(test),
            test_labels=torch.from_numpy(labels[test]),
            classes=tuple(str(digit) for digit in range(10)),
        )
