"""The weighted mean of models.

    θ = Σ_i w_i θ_i / Σ_i w_i,   i in the order given

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

The sum is computed block by block. A block stays in the processor's cache while all models are added to it. So each
model is read once from memory, and the mean is written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import torch
from safetensors.torch import load_file
from torch import Tensor

from celm.models.state_dict import StateDict

BLOCK_VALUES = 1 << 20
"""Values of the running sum in one block, per thread."""
READ_AHEAD_BYTES = 1 << 29
"""Bytes of models that are read at a time if they are not in memory; at least one model is read."""


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> StateDict:
    """Return the weighted mean of `states` of one architecture. Weights are at least 0 and need not sum to one.

    - Floating tensors are accumulated in the order of the states in their own dtype, half types in float32.
    - Integer and boolean buffers (BatchNorm's batch counter) have no meaningful mean. They are copied from the state
      with the greatest weight, the first of equals.
    - A state of weight zero is not read.
    - `states` may be a sequence that reads a state on access, such as `LazyStateDicts`. Each state is then read once,
      in order, and only a few are in memory at a time. A list or tuple is processed as one batch.
    """
    if len(states) != len(weights) or not states:
        raise ValueError(
            f"states and weights must be equal in number, and at least one: {len(states)} and {len(weights)}"
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero: {list(weights)}")
    # Divide by the greatest weight first: the sum of very large weights would overflow.
    max_weight = max(weights)
    total = math.fsum(weight / max_weight for weight in weights)
    heaviest_index = list(weights).index(max_weight)
    shares = {i: float(weight) / max_weight / total for i, weight in enumerate(weights) if weight}
    sums: StateDict = {}
    dtypes: dict[str, torch.dtype] = {}
    with torch.no_grad():
        for batch in iter_batches(states, list(shares)):
            for name, tensor in next(iter(batch.values())).items():
                dtypes.setdefault(name, tensor.dtype)
                if tensor.is_floating_point() or tensor.is_complex():
                    tensors = [state[name].detach() for state in batch.values()]
                    sums[name] = _accumulate(sums.get(name), tensors, [shares[i] for i in batch])
                elif heaviest_index in batch:
                    sums[name] = batch[heaviest_index][name].detach().clone()
    # `dtypes` has the names in the order of the first state with a positive weight.
    return {name: sums[name].to(dtype) for name, dtype in dtypes.items()}


def iter_batches(
    states: Sequence[Mapping[str, Tensor]], indices: Sequence[int]
) -> Iterator[dict[int, Mapping[str, Tensor]]]:
    """Yield the states at `indices` by index: all of a list at once, else as many as may be read ahead."""
    if isinstance(states, (list, tuple)):
        yield {i: states[i] for i in indices}
        return
    batch: dict[int, Mapping[str, Tensor]] = {}
    bytes_left = READ_AHEAD_BYTES
    for i in indices:
        batch[i] = states[i]
        size = sum(tensor.nbytes for tensor in batch[i].values())
        bytes_left -= size
        if bytes_left < size:
            yield batch
            batch, bytes_left = {}, READ_AHEAD_BYTES
    if batch:
        yield batch


def _accumulate(total: Tensor | None, tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """Return `total`, or zero, plus Σ share · tensor: in place, block by block, in the order of the tensors."""
    is_new = total is None
    if total is None:
        total = torch.empty_like(tensors[0], dtype=accumulator_dtype(tensors[0].dtype))
    if not all(tensor.is_contiguous() for tensor in (total, *tensors)):
        blocks = [(total, *tensors)]
    else:
        size = BLOCK_VALUES * torch.get_num_threads()
        blocks = list(zip(*(torch.split(tensor.view(-1), size) for tensor in (total, *tensors)), strict=True))
    for block, *pieces in blocks:
        for i, (piece, share) in enumerate(zip(pieces, shares, strict=True)):
            converted = piece if piece.dtype is total.dtype else piece.to(total.dtype)
            if is_new and i == 0:
                torch.mul(converted, share, out=block)
            else:
                block.add_(converted, alpha=share)
    return total


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a running sum of tensors of `dtype`."""
    return dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32


class LazyStateDicts(Sequence[StateDict]):
    """Models in safetensors files, memory-mapped on access.

    No other process may change the files: if a mapped file gets shorter, the operating system kills this process.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> StateDict: ...
    @overload
    def __getitem__(self, index: slice) -> LazyStateDicts: ...
    def __getitem__(self, index: int | slice) -> StateDict | LazyStateDicts:
        return LazyStateDicts(self.paths[index]) if isinstance(index, slice) else load_file(self.paths[index])
