"""Fed-ISIC2019 as features of a frozen network: a head is trained on them, and the probe is in feature space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from celm.data.dataset import Dataset, Defaults, Source
from celm.data.facts import Facts
from celm.data.features import features
from celm.data.files.cache import cached
from celm.data.files.fetch import available
from celm.data.raw import read_parquet_raw
from celm.data.sources.fedisic import CLASSES, FedIsic, owners


@dataclass(frozen=True)
class FedIsicFeatures(Source):
    """Fed-ISIC2019 as 1280 features of a frozen ImageNet EfficientNet-Lite0, 8 classes, 6 centres."""

    size: Annotated[int, Field(ge=32, le=512)] = 128
    """Images are resized to size x size before the network sees them."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", split="natural", rounds=200, lr=0.01)
    facts: ClassVar[Facts] = FedIsic.facts

    def load(self) -> Dataset:
        found = available(self.facts)
        stored = self.facts.shape[1]
        raw = read_parquet_raw(found, self.facts.name, channels=3, size=stored)
        raw.checked(found.folder, len(CLASSES), (3, stored, stored))
        parts = cached(
            "fedisic_features",
            [*found.files["train"], *found.files["test"]],
            {"size": self.size, "network": "efficientnet-lite0"},
            lambda: {
                "train": features(raw.train_images, self.size),
                "test": features(raw.test_images, self.size),
            },
        )
        # One mean and one deviation for all features, as for the pixels of an image.
        deviation, mean = torch.std_mean(parts["train"])
        return Dataset(
            name="fedisic_features",
            train_inputs=(parts["train"] - mean) / deviation,
            train_labels=raw.train_labels,
            test_inputs=(parts["test"] - mean) / deviation,
            test_labels=raw.test_labels,
            classes=CLASSES,
            owners=owners(found),
        )
