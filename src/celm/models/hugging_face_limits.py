"""Limits on an untrusted `config.json`: a few bytes of it can ask for any number of layers and any size.

The configuration is read first, because transformers itself makes lists as long as its counts. Then the model is built
on the meta device, which has shapes but no values. The global model bounds the number of tensors, modules and values,
also those of buffers that are not saved. Nothing is downloaded meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as torch_hooks

from celm.base.errors import CelmError
from celm.base.json_files import read_json
from celm.base.text import quote

_MAX_CONFIG_BYTES = 16 << 20
_MAX_SIZE = 1 << 24
"""Largest whole number in a configuration, such as a number of positions."""
_MAX_LAYERS = 10_000
_MAX_LABELS = 100_000
_OTHER_TENSORS = 1000
"""Number of tensors beside twice those of the global model: tied ones and buffers that are not saved."""
_MODULES_PER_TENSOR = 10
_OTHER_VALUES = 1 << 26
"""Number of values beside twice those of the global model."""


def check_config_file(folder: Path, options: Mapping[str, Any]) -> None:
    """Refuse a `config.json` that is too long or has a number out of range; `options` replace its fields."""
    path = folder / "config.json"
    size = path.stat().st_size
    if size > _MAX_CONFIG_BYTES:
        raise CelmError(f"{path} is too large: {size:,} bytes, at most {_MAX_CONFIG_BYTES:,}")
    _check_numbers({**read_json(path), **options}, "")


@contextmanager
def forbid_downloads() -> Iterator[None]:
    """Refuse requests to the Hugging Face hub during the block: a configuration can name a backbone that is there."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise CelmError(
            "it names a model of the Hugging Face hub, but nothing is downloaded for it"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = before


def _check_numbers(value: object, name: str) -> None:
    """Refuse the first number out of range. An element of a list has the name of the list."""
    if isinstance(value, Mapping):
        for key, field in value.items():
            _check_numbers(field, str(key))
    elif isinstance(value, list | tuple):
        for element in value:
            _check_numbers(element, name)
    elif isinstance(value, int) and abs(value) > (limit := _find_limit(name)):
        raise CelmError(f"{quote(name)} is {_shorten(value)}, at most {limit:,}")


def _find_limit(name: str) -> float:
    if name == "num_labels":
        return _MAX_LABELS
    if "layer" in name or "depth" in name:
        return _MAX_LAYERS
    return float("inf") if name.endswith("theta") else _MAX_SIZE  # the base of rotary angles is not a size


def _shorten(value: int) -> str:
    return f"{value:,}" if abs(value) < 10**30 else "a number of more than 30 digits"


@contextmanager
def limit_construction(reference: Mapping[str, Tensor], source: str = "the global model") -> Iterator[None]:
    """Build on the meta device during the block. Stop as soon as a model cannot be that of `reference`.

    `source` says in the error where the reference comes from.
    """
    thread = threading.get_ident()
    max_tensors = _OTHER_TENSORS + 2 * len(reference)
    limits = {
        "tensors": max_tensors,
        "modules": _MODULES_PER_TENSOR * max_tensors,
        "values": _OTHER_VALUES + 2 * sum(tensor.numel() for tensor in reference.values()),
    }
    counts = dict.fromkeys(limits, 0)

    def count(kind: str, number: int) -> None:
        counts[kind] += number
        if counts[kind] > limits[kind]:
            raise CelmError(
                f"it describes more than {limits[kind]:,} {kind}, but {source} has {len(reference):,} tensors"
            )

    def count_tensor(_module: object, _name: str, tensor: Tensor | None) -> None:
        if tensor is not None and threading.get_ident() == thread:
            count("tensors", 1)
            count("values", tensor.numel())

    def count_module(_module: object, _name: str, _child: object) -> None:
        if threading.get_ident() == thread:
            count("modules", 1)

    with ExitStack() as stack:
        for handle in (
            torch_hooks.register_module_parameter_registration_hook(count_tensor),
            torch_hooks.register_module_buffer_registration_hook(count_tensor),
            torch_hooks.register_module_module_registration_hook(count_module),
        ):
            stack.callback(handle.remove)
        stack.enter_context(torch.device("meta"))
        yield
