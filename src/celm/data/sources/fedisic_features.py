"""Fed-ISIC2019 as features of a frozen network. A head is trained on them, and the probe works in feature space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo
from celm.data.efficientnet_features import extract_image_features
from celm.data.files.cache import load_or_compute
from celm.data.files.ensure import ensure_files
from celm.data.raw_images import read_parquet_images
from celm.data.sources.fedisic import FEDISIC_CLASSES, FedIsic, read_centers


@dataclass(frozen=True)
class FedIsicFeatures(DatasetSource):
    """Fed-ISIC2019 as 1280 EfficientNet-Lite0 features, 8 classes.

    The network is frozen and trained on ImageNet. The clients are the same 6 centres.
    """

    size: Annotated[int, Field(ge=32, le=512)] = 128
    """Side to which images are resized before the network, in pixels."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", split="natural", rounds=200, lr=0.01)
    info: ClassVar[DatasetInfo] = FedIsic.info

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        stored_size = self.info.shape[1]
        raw = read_parquet_images(located, self.info.name, channels=3, size=stored_size)
        raw.validate(located.folder, len(FEDISIC_CLASSES), (3, stored_size, stored_size))
        features_by_part = load_or_compute(
            "fedisic_features",
            [*located.files["train"], *located.files["test"]],
            {"size": self.size, "network": "efficientnet-lite0"},
            lambda: {
                "train": extract_image_features(raw.train_images, self.size),
                "test": extract_image_features(raw.test_images, self.size),
            },
        )
        # All features share one mean and one standard deviation, as the pixels of a grey image do.
        deviation, mean = torch.std_mean(features_by_part["train"])
        return Dataset(
            name="fedisic_features",
            train_inputs=(features_by_part["train"] - mean) / deviation,
            train_labels=raw.train_labels,
            test_inputs=(features_by_part["test"] - mean) / deviation,
            test_labels=raw.test_labels,
            classes=FEDISIC_CLASSES,
            client_ids=read_centers(located),
        )
