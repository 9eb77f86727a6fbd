"""Splits by name, and tables of how many samples of each class a client holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from celm.base.registry import build_component
from celm.data.split import Partition, Split
from celm.data.splits.dirichlet import Dirichlet
from celm.data.splits.free_rider import FreeRider
from celm.data.splits.frm import FreeRiderAndMaverick
from celm.data.splits.iid import Iid
from celm.data.splits.maverick import Maverick
from celm.data.splits.natural import Natural
from celm.data.splits.pls import PureLabelSkew
from celm.data.splits.sls import StepLabelSkew

SPLITS: dict[str, type[Split]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "pls": PureLabelSkew,
    "sls": StepLabelSkew,
    "maverick": Maverick,
    "free_rider": FreeRider,
    "frm": FreeRiderAndMaverick,
    "natural": Natural,
}
FASHION = np.random.RandomState(0).permutation(np.repeat(np.arange(10), 6000))
"""Labels as of FashionMNIST: 6000 of each of ten classes."""
CIFAR = np.random.RandomState(0).permutation(np.repeat(np.arange(10), 5000))
"""Labels as of CIFAR-10: 5000 of each of ten classes."""


def make_split(name: str, **options: Any) -> Split:
    return build_component(SPLITS[name], options, "split", name)


def split_labels(split: Split, labels: Any, clients: int = 5, seed: int = 42, classes: int = 10) -> Partition:
    return split.partition(labels, classes, clients, np.random.RandomState(seed))


def count_table(
    split: Split, labels: Any, clients: int = 5, seed: int = 42, classes: int = 10
) -> NDArray[np.int64]:
    """Return samples by client and class."""
    return np.array(
        list(split_labels(split, labels, clients, seed, classes).counts(labels, classes).values())
    )
