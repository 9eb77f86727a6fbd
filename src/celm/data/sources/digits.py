"""Optical recognition of handwritten digits (Alpaydin, Kaynak 1998), as bundled with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from celm.data.dataset import Dataset, Defaults, Source
from celm.data.facts import Facts
from celm.data.holdout import hold_out

MEAN, STD = 0.30577, 0.37656
"""Of the training part's pixels on 0 .. 1; computed once, written down so that they never move."""


@dataclass(frozen=True)
class Digits(Source):
    """Handwritten digits, 8x8, 10 classes, 1,797 images; needs no files."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", split="pls", rounds=100)
    facts: ClassVar[Facts] = Facts(
        name="digits", shape=(1, 8, 8), classes=10, licence="CC BY 4.0", counts=((1438, 359),)
    )

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        labels = bunch.target.astype(np.int64)
        pixels = torch.from_numpy(bunch.images.astype(np.float32) / 16).unsqueeze(1)
        train, test = hold_out(labels)

        def inputs(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
            return (pixels[torch.from_numpy(rows)] - MEAN) / STD

        return Dataset(
            name="digits",
            train_inputs=inputs(train),
            train_labels=torch.from_numpy(labels[train]),
            test_inputs=inputs(test),
            test_labels=torch.from_numpy(labels[test]),
            classes=tuple(str(digit) for digit in range(10)),
        )
