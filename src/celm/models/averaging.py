"""The weighted mean of models.

    θ = Σ_i w_i θ_i / Σ_i w_i,   i in the order given

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

The sum is taken block by block, each small enough to stay in the processor's cache while all models are added to it:
every model is read once from memory and the mean is written once, which is all that has to move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import torch
from safetensors.torch import load_file
from torch import Tensor

from celm.models.state import StateDict

BLOCK = 1 << 20
"""Values of a running sum that a thread works on at a time."""
READ_AHEAD = 1 << 29
"""Bytes of models that are read at a time, where they are not in memory already; one model at least."""


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> StateDict:
    """The mean of `states`, which fit one another; weights are not negative and need not sum to one.

    - Floating tensors are accumulated in the order of the states in their own dtype, half types in float32.
    - Integer and boolean buffers (BatchNorm's batch counter) have no meaningful mean: they are copied from
      the state with the greatest weight, the first of equals.
    - A state of weight zero is not read at all.
    - `states` may be a sequence that reads a state when it is asked for it, such as `Files`: each is asked for once,
      in order, and only a few are held at a time. A list is in memory already, and taken as a whole.
    """
    if len(states) != len(weights) or not states:
        raise ValueError(f"{len(states)} states and {len(weights)} weights")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero: {list(weights)}")
    # Divided by the greatest first, as the sum of very large weights would overflow.
    greatest = max(weights)
    total = math.fsum(weight / greatest for weight in weights)
    heaviest = list(weights).index(greatest)
    shares = {i: float(weight) / greatest / total for i, weight in enumerate(weights) if weight}
    sums: StateDict = {}
    dtypes: dict[str, torch.dtype] = {}
    with torch.no_grad():
        for part in parts(states, list(shares)):
            for name, tensor in next(iter(part.values())).items():
                dtypes.setdefault(name, tensor.dtype)
                if tensor.is_floating_point() or tensor.is_complex():
                    tensors = [state[name].detach() for state in part.values()]
                    sums[name] = added(sums.get(name), tensors, [shares[i] for i in part])
                elif heaviest in part:
                    sums[name] = part[heaviest][name].detach().clone()
    # `dtypes` has the order of the names in the first state that counts.
    return {name: sums[name].to(dtype) for name, dtype in dtypes.items()}


def parts(
    states: Sequence[Mapping[str, Tensor]], wanted: Sequence[int]
) -> Iterator[dict[int, Mapping[str, Tensor]]]:
    """The wanted states by their number: all at once from a list, else as many as may be read ahead."""
    if isinstance(states, (list, tuple)):
        yield {i: states[i] for i in wanted}
        return
    part: dict[int, Mapping[str, Tensor]] = {}
    room = READ_AHEAD
    for i in wanted:
        part[i] = states[i]
        size = sum(tensor.nbytes for tensor in part[i].values())
        room -= size
        if room < size:
            yield part
            part, room = {}, READ_AHEAD
    if part:
        yield part


def added(total: Tensor | None, tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """`total`, or zero, plus Σ share · tensor: in place, block by block, one tensor after the other in each."""
    fresh = total is None
    if total is None:
        total = torch.empty_like(tensors[0], dtype=accumulator(tensors[0].dtype))
    if not all(one.is_contiguous() for one in (total, *tensors)):
        blocks = [(total, *tensors)]
    else:
        size = BLOCK * torch.get_num_threads()
        blocks = list(zip(*(torch.split(one.view(-1), size) for one in (total, *tensors)), strict=True))
    for block, *pieces in blocks:
        for i, (piece, share) in enumerate(zip(pieces, shares, strict=True)):
            same = piece if piece.dtype is total.dtype else piece.to(total.dtype)
            if fresh and i == 0:
                torch.mul(same, share, out=block)
            else:
                block.add_(same, alpha=share)
    return total


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32


class Files(Sequence[StateDict]):
    """Models in safetensors files of one's own, mapped into memory when they are asked for.

    What others may change while it is read must be read into memory first: a mapped file that gets shorter ends the
    process.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, which: int) -> StateDict: ...
    @overload
    def __getitem__(self, which: slice) -> Files: ...
    def __getitem__(self, which: int | slice) -> StateDict | Files:
        return Files(self.paths[which]) if isinstance(which, slice) else load_file(self.paths[which])
