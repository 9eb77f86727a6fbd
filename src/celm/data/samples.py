"""Samples in memory from what people have: arrays, torch datasets, Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.text import format_exception
from celm.data.client_names import check_client_names

_LABEL_COLUMNS = ("label", "labels", "target", "fine_label")
_IMAGE_COLUMNS = ("image", "img")
_CLIENT_COLUMN = "client"


@dataclass(frozen=True)
class Samples:
    """Inputs float32 `[n, *shape]` with a label for each."""

    inputs: Tensor
    labels: NDArray[Any]
    class_names: tuple[str, ...] | None = None
    """Names by class index, if the data have them."""
    client_ids: tuple[str, ...] | None = None


def is_hugging_face(value: object) -> bool:
    """Check whether this is a dataset of the library `datasets`, which is not imported."""
    return hasattr(value, "features") and hasattr(value, "column_names") and hasattr(value, "with_format")


def read_samples(data: Any, source: str) -> Samples:
    """Read `(x, y)`, a torch dataset of pairs, or a Hugging Face dataset; `source` names it in errors."""
    if is_hugging_face(data):
        return _read_hugging_face(data, source)
    if isinstance(data, tuple | list):
        if len(data) != 2:
            raise CelmError(f"{source}: {len(data)} arrays are not a pair (x, y)", "give inputs and labels")
        inputs, labels = data
    elif isinstance(data, torch.utils.data.TensorDataset):
        if len(data.tensors) != 2:
            raise CelmError(
                f"{source}: the TensorDataset has {len(data.tensors)} tensors, not inputs and labels"
            )
        inputs, labels = data.tensors
    else:
        inputs, labels = _read_pairs(data, source)
    samples = Samples(to_inputs(inputs, source), _to_labels(labels, source))
    _check_lengths(samples, source)
    return samples


def _read_pairs(data: Any, source: str) -> tuple[Any, Any]:
    """Read a map-style torch dataset whose samples are pairs of input and label."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise CelmError(f"{source}: {type(data).__name__} has no length or no samples by index")
    try:
        pairs = [data[i] for i in range(len(data))]
    except Exception as error:
        raise CelmError(
            f"{source}: a sample of {type(data).__name__} cannot be read: {format_exception(error)}"
        ) from error
    if not pairs:
        raise CelmError(f"{source}: the dataset has no samples")
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise CelmError(f"{source}: a sample of {type(data).__name__} is not a pair of input and label")
    labels = [label.item() if isinstance(label, Tensor | np.generic) else label for _, label in pairs]
    return _stack([x for x, _ in pairs], source), labels


def _read_hugging_face(data: Any, source: str) -> Samples:
    columns: list[str] = list(data.column_names)
    label = next((name for name in _LABEL_COLUMNS if name in columns), None)
    if label is None:
        raise CelmError(f"{source}: there is no column 'label'", f"it has: {', '.join(columns)}")
    values: Mapping[str, list[Any]] = data.with_format(None)[:]
    rest = [name for name in columns if name not in (label, _CLIENT_COLUMN)]
    image = next((name for name in _IMAGE_COLUMNS if name in rest), None)
    if image is not None:
        inputs = _stack(values[image], f"{source}: column '{image}'")
    elif len(rest) == 1:
        inputs = _stack(values[rest[0]], f"{source}: column '{rest[0]}'")
    elif rest:
        features = [_stack(values[name], f"{source}: column '{name}'") for name in rest]
        if any(feature.ndim != 1 for feature in features):
            raise CelmError(
                f"{source}: columns {', '.join(rest)} are not numbers", "select_columns the inputs"
            )
        inputs = np.stack(features, axis=1)
    else:
        raise CelmError(f"{source}: there is no column besides '{label}'")
    names = getattr(data.features[label], "names", None)
    clients = values.get(_CLIENT_COLUMN)
    samples = Samples(
        to_inputs(inputs, source),
        _to_labels(values[label], source),
        tuple(names) if names else None,
        None if clients is None else to_client_ids(clients, f"{source}: column '{_CLIENT_COLUMN}'"),
    )
    _check_lengths(samples, source)
    return samples


def to_client_ids(values: Any, source: str) -> tuple[str, ...]:
    """Return the names of clients; a number i becomes client-i."""
    plain = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    return check_client_names(
        [value.item() if isinstance(value, np.generic) else value for value in plain], source
    )


def _stack(values: Sequence[Any], source: str) -> NDArray[Any]:
    """Stack images, arrays or numbers; images of PIL become arrays."""
    arrays = [value.numpy() if isinstance(value, Tensor) else np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes, key=str)
        raise CelmError(f"{source}: inputs have different shapes, {first} and {second}", "resize them first")
    if arrays and arrays[0].dtype.kind not in "biuf":
        raise CelmError(
            f"{source}: inputs are {arrays[0].dtype}, not numbers", "encode them as numbers first"
        )
    return np.stack(arrays)


def to_inputs(values: Any, source: str) -> Tensor:
    """Return float32 inputs. Images uint8 `[n, h, w]` or `[n, h, w, c]` become `[n, c, h, w]`, divided by 255."""
    tensor = values.detach().cpu() if isinstance(values, Tensor) else _to_tensor(values, source)
    if tensor.ndim < 2:
        raise CelmError(f"{source}: inputs have shape {list(tensor.shape)}, not [samples, ...]")
    if tensor.dtype == torch.uint8 and tensor.ndim in (3, 4):
        if tensor.ndim == 3:
            tensor = tensor.unsqueeze(1)
        elif tensor.shape[-1] in (1, 3, 4) and tensor.shape[1] not in (1, 3, 4):
            tensor = tensor.permute(0, 3, 1, 2)
        tensor = tensor.float() / 255
    tensor = tensor.float().contiguous()
    if not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor.flatten(1)).all(1)).nonzero()[0])
        raise CelmError(f"{source}: the inputs of sample {bad} are not finite")
    return tensor


def _to_tensor(values: Any, source: str) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise CelmError(f"{source}: inputs are {array.dtype}, not numbers", "encode them as numbers first")
    return torch.from_numpy(np.ascontiguousarray(array))


def _to_labels(values: Any, source: str) -> NDArray[Any]:
    if isinstance(values, list | tuple) and len({isinstance(label, str) for label in values}) > 1:
        raise CelmError(f"{source}: labels mix texts and numbers", "use either whole numbers or text")
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise CelmError(
            f"{source}: labels have shape {list(array.shape)}, not [samples]", "one label for each sample"
        )
    if array.dtype.kind == "f" and bool(np.all(array == np.round(array))):
        array = array.astype(np.int64)
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array):
        array = array.astype(str)
    if array.dtype.kind not in "biuU":
        raise CelmError(f"{source}: labels are {array.dtype}, not classes", "use whole numbers or text")
    return array


def _check_lengths(samples: Samples, source: str) -> None:
    if len(samples.inputs) != len(samples.labels):
        raise CelmError(f"{source}: {len(samples.inputs)} inputs but {len(samples.labels)} labels")
    if len(samples.labels) == 0:
        raise CelmError(f"{source}: the dataset has no samples")
