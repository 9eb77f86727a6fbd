"""A dataset as outputs of a model's frozen stage, computed once and cached on disk.

The key of a cached file is a digest of the weights and the structure of the stage, the inputs, and the version of
torch. Code can change without a change of these. So the first outputs of a file are compared with new ones before it
is used. A damaged file is replaced. If several processes need one file, the first computes it and the others wait.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.text import Text
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.files import read_tensors, tensor_digest, write_tensors
from celm.base.locking import exclusive
from celm.data.dataset import Dataset
from celm.data.files.cache import decoded_cache_root

_BATCH_SIZE = 64
"""Fixed, so that outputs have the same bits in every process with as many threads."""
_NUM_COMPARED = 4
"""Samples of a cached file that are computed again before it is used."""
_RELATIVE_TOLERANCE = 1e-3
"""Largest deviation of a recomputed output, relative to the largest output; rounding depends on threads."""


def encode_dataset(dataset: Dataset, frozen: nn.Module, device: str = "cpu") -> Dataset:
    """Return the dataset with the outputs of the frozen stage in place of its inputs."""
    if dataset.pad_value is not None:
        raise CelmError(
            "run.cache_frozen: crops and flips change the images in every epoch, but frozen layers are run once",
            "set dataset.augment=false, or run.cache_frozen=false",
        )
    frozen = frozen.to(device)
    return replace(
        dataset,
        train_inputs=_load_or_encode(frozen, dataset.train_inputs, dataset.name, device),
        test_inputs=_load_or_encode(frozen, dataset.test_inputs, dataset.name, device),
    )


@torch.no_grad()
def encode(frozen: nn.Module, inputs: Tensor, device: str = "cpu", show_progress: bool = False) -> Tensor:
    """Return the outputs of a frozen stage for inputs `[n, *shape]`, on the CPU."""
    shape = frozen(inputs[:1].to(device)).shape[1:]
    outputs = torch.empty(len(inputs), *shape)
    starts = range(0, len(inputs), _BATCH_SIZE)
    for start in track(starts, "frozen layers", console=Console(stderr=True), disable=not show_progress):
        batch = inputs[start : start + _BATCH_SIZE].to(device)
        outputs[start : start + len(batch)] = frozen(batch)
    return outputs


def _load_or_encode(frozen: nn.Module, inputs: Tensor, name: str, device: str) -> Tensor:
    path = decoded_cache_root() / f"{name}-frozen-{_cache_key(frozen, inputs)}.safetensors"
    with _locked_if_writable(path):
        outputs = _read_outputs(path, encode(frozen, inputs[:_NUM_COMPARED], device), len(inputs))
        if outputs is None:
            outputs = encode(frozen, inputs, device, show_progress=sys.stderr.isatty())
            size = f"{outputs.nbytes / 1e9:.2f} GB"
            try:
                write_tensors(path, {"outputs": outputs}, {"dataset": name})
            except CelmError as error:
                _report(f"outputs of the frozen layers, {size}, are not cached: {error}")
            else:
                _report(f"cached outputs of the frozen layers for {len(inputs):,} samples: {size} in {path}")
    return outputs


def _report(message: str) -> None:
    Console(stderr=True, highlight=False).print(Text(message), soft_wrap=True)


def _cache_key(frozen: nn.Module, inputs: Tensor) -> str:
    state = {name: tensor for name, tensor in frozen.state_dict().items() if isinstance(tensor, Tensor)}
    parts = (tensor_digest(state), repr(frozen), tensor_digest({"inputs": inputs}), torch.__version__)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def _read_outputs(path: Path, expected: Tensor, count: int) -> Tensor | None:
    """Return the cached outputs; None if there is no file, or it is damaged or of another computation."""
    try:
        outputs = read_tensors(path)[0]["outputs"]
    except (CelmError, KeyError):
        return None
    if outputs.shape != (count, *expected.shape[1:]) or outputs.dtype != expected.dtype:
        return None
    deviation = (outputs[: len(expected)] - expected).abs().max()
    return outputs if deviation <= _RELATIVE_TOLERANCE * expected.abs().max() else None


@contextmanager
def _locked_if_writable(path: Path) -> Iterator[None]:
    """Hold the lock of a cached file; without a lock, as in a read-only folder, each process computes for itself."""
    with ExitStack() as stack:
        with suppress(CelmError, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(path.with_suffix(".lock"), timeout=-1, resource=path))
        yield
