"""Data that are given as objects: `(x, y)`, torch and Hugging Face datasets, and partitioners of flwr-datasets.

Accepted are arrays or tensors `(x, y)`, a `TensorDataset` or another torch dataset of pairs, a Hugging Face dataset, a
`DatasetDict`, a partitioner or `FederatedDataset` of flwr-datasets, and a mapping of `train`, and optionally `test` and
`clients`. Without test data, a fifth of each class is held out, the same for every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from celm.base.code_digest import short_digest
from celm.base.errors import CelmError
from celm.data.client_names import check_client_names
from celm.data.dataset import Dataset, DatasetSource, Defaults, hold_out
from celm.data.samples import Samples, is_hugging_face, read_samples, to_client_ids

_PARTS = ("train", "test", "clients")


@dataclass(frozen=True)
class InMemory(DatasetSource):
    """Data of this process. A subclass has the data."""

    data: ClassVar[Dataset]

    def load(self) -> Dataset:
        return self.data


def is_data(value: object) -> bool:
    """Check whether a value can be data: no name, and no table of settings."""
    if isinstance(value, Mapping):
        return "train" in value and "name" not in value
    return (
        isinstance(value, tuple | list | torch.utils.data.Dataset)
        or is_hugging_face(value)
        or _is_partitioned(value)
    )


def in_memory_source(value: Any) -> tuple[str, str, type[InMemory]]:
    """Return name, digest and source of data that are given as an object."""
    name, train, test = _read(value)
    dataset = _to_dataset(name, train, test)
    split = "iid" if dataset.client_ids is None else "natural"
    members = {"data": dataset, "defaults": Defaults(model="mlp", split=split)}
    return name, _digest(dataset), type("InMemoryData", (InMemory,), members)


def _read(value: Any) -> tuple[str, Samples, Samples | None]:
    """Return the data's name, and the training and test samples."""
    if _is_partitioned(value):
        return _read_partitioned(value)
    if not isinstance(value, Mapping):
        return _name(value), read_samples(value, "dataset"), None
    test_key = next((key for key in ("test", "validation") if key in value), None)
    if not all(is_hugging_face(part) for part in value.values()) and (
        extra := [k for k in value if k not in _PARTS]
    ):
        raise CelmError(f"dataset: unknown part '{extra[0]}'", f"one of: {', '.join(_PARTS)}")
    train = read_samples(value["train"], "dataset 'train'")
    clients = value.get("clients")
    if clients is not None:
        if len(clients) != len(train.labels):
            raise CelmError(f"dataset: {len(clients)} clients but {len(train.labels)} training samples")
        train = replace(train, client_ids=to_client_ids(clients, "dataset 'clients'"))
    test = None if test_key is None else read_samples(value[test_key], f"dataset '{test_key}'")
    return _name(value["train"]), train, test


def _name(value: Any) -> str:
    if is_hugging_face(value):
        return "hf_dataset"
    return "arrays" if isinstance(value, tuple | list) else "torch_dataset"


def _is_partitioned(value: object) -> bool:
    """Check for a partitioner or `FederatedDataset` of flwr-datasets, which is not imported."""
    return hasattr(value, "load_partition") and (
        hasattr(value, "num_partitions") or hasattr(value, "partitioners")
    )


def _read_partitioned(value: Any) -> tuple[str, Samples, Samples | None]:
    """Read all partitions; each is a client, which keeps its natural name."""
    partitioner, test = value, None
    try:
        if hasattr(value, "partitioners"):
            value.load_partition(0)  # loads and assigns the data
            partitioner = value.partitioners["train"]
            test = _read_test_split(value)
        partitions = [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]
    except AttributeError as error:
        raise CelmError("dataset: the partitioner has no data", "set its `dataset` first") from error
    names = getattr(partitioner, "partition_id_to_natural_id", {})
    parts = [read_samples(partition, f"partition {i}") for i, partition in enumerate(partitions)]
    owners = [str(names.get(i, f"client-{i}")) for i, part in enumerate(parts) for _ in part.labels]
    clients = check_client_names(owners, "dataset: the partitioner")
    inputs = torch.cat([part.inputs for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    return "hf_partitions", Samples(inputs, labels, parts[0].class_names, clients), test


def _read_test_split(value: Any) -> Samples | None:
    try:
        return read_samples(value.load_split("test"), "dataset 'test'")
    except (KeyError, ValueError):
        return None


def _to_dataset(name: str, train: Samples, test: Samples | None) -> Dataset:
    class_names, train_labels = _encode(train)
    client_ids = train.client_ids
    if test is None:
        train_rows, test_rows = hold_out(train_labels)
        inputs, test_inputs = train.inputs[train_rows], train.inputs[test_rows]
        train_labels, test_labels = train_labels[train_rows], train_labels[test_rows]
        client_ids = None if client_ids is None else tuple(client_ids[row] for row in train_rows)
    else:
        inputs, test_inputs = train.inputs, test.inputs
        test_labels = _encode_test(train, test)
        if inputs.shape[1:] != test_inputs.shape[1:]:
            raise CelmError(
                f"dataset: training inputs are {list(inputs.shape[1:])}, test inputs {list(test_inputs.shape[1:])}"
            )
    return Dataset(
        name=name,
        train_inputs=inputs,
        train_labels=torch.from_numpy(train_labels),
        test_inputs=test_inputs,
        test_labels=torch.from_numpy(test_labels),
        classes=class_names,
        client_ids=client_ids,
    )


def _encode(samples: Samples) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of classes, and labels as class indices."""
    if samples.class_names is not None and samples.labels.dtype.kind in "iu":
        labels = samples.labels.astype(np.int64)
        if labels.min() < 0 or labels.max() >= len(samples.class_names):
            raise CelmError(f"dataset: a label is outside 0 to {len(samples.class_names) - 1}")
        return samples.class_names, labels
    values, labels = np.unique(samples.labels, return_inverse=True)
    if len(values) < 2:
        raise CelmError(f"dataset: there is only one class, '{values[0]}'; at least two are needed")
    return tuple(str(value) for value in values), labels.astype(np.int64)


def _encode_test(train: Samples, test: Samples) -> NDArray[np.int64]:
    """Return the test labels as indices of the training classes."""
    if train.class_names is not None and test.labels.dtype.kind in "iu":
        return _encode(replace(test, class_names=train.class_names))[1]
    values = np.unique(train.labels)
    unknown = np.setdiff1d(test.labels, values)
    if len(unknown):
        raise CelmError(
            f"dataset: the test data have a class '{unknown[0]}' that is not in the training data"
        )
    return np.searchsorted(values, test.labels).astype(np.int64)


def _digest(dataset: Dataset) -> str:
    tensors = (dataset.train_inputs, dataset.train_labels, dataset.test_inputs, dataset.test_labels)
    contents = [part for tensor in tensors for part in (str(list(tensor.shape)), tensor.numpy().tobytes())]
    return short_digest(repr(dataset.classes), repr(dataset.client_ids), *contents)
