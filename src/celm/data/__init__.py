"""Datasets and splits.

- `registry`: the registered datasets and splits by name
- `dataset`: `Dataset` in memory, and the base class `DatasetSource`; `dataset_info`: facts known before loading
- `sources`: the datasets, one per file; `raw_images`, `efficientnet_features`, `files`: how they are read
- `split`: `Partition`, and the base class `Split`; `splits`: the splits, one per file
- `augment`: random crops and flips
- `inventory`: which datasets are on this machine

Importing this package does not import torch or numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celm.base.lazy import lazy_attributes

if TYPE_CHECKING:
    from celm.data.dataset import Dataset as Dataset
    from celm.data.dataset import DatasetSource as DatasetSource
    from celm.data.dataset import Defaults as Defaults
    from celm.data.dataset_info import DatasetInfo as DatasetInfo
    from celm.data.split import Indices as Indices
    from celm.data.split import Partition as Partition
    from celm.data.split import Split as Split
    from celm.data.split import name_clients as name_clients
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "Dataset": "celm.data.dataset",
            "DatasetInfo": "celm.data.dataset_info",
            "DatasetSource": "celm.data.dataset",
            "Defaults": "celm.data.dataset",
            "Indices": "celm.data.split",
            "Partition": "celm.data.split",
            "Split": "celm.data.split",
            "name_clients": "celm.data.split",
        },
    )

__all__ = [
    "Dataset",
    "DatasetInfo",
    "DatasetSource",
    "Defaults",
    "Indices",
    "Partition",
    "Split",
    "name_clients",
]
