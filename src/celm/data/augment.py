"""Random crop and flip of a whole batch at once: no Python per sample.

    y[i, c, row, column] = padded(x)[i, c, row + down_i, column + right_i], mirrored where flip_i

with down, right uniform on 0 .. 2 * padding and flip a fair coin.
"""

from __future__ import annotations

import torch
from torch import Tensor


def crop_and_flip(inputs: Tensor, fill: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """`[n, c, h, w]` to the same shape; `fill` `[c]` lies beyond the edge (black after normalisation).

    All randomness is drawn on the CPU from `generator`, so the result does not depend on the device.
    The result lies in memory with its channels last, as convolutions like it.
    """
    count, channels, height, width = inputs.shape
    device = inputs.device
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator).to(device)
    flipped = torch.randint(0, 2, (count,), generator=generator).nonzero().view(-1).to(device)

    tall, wide = height + 2 * padding, width + 2 * padding
    padded = fill.to(inputs).expand(count, tall, wide, channels).contiguous()
    padded[:, padding : padding + height, padding : padding + width] = inputs.permute(0, 2, 3, 1)

    # With the channels last, every row of a crop is one run of values in memory: a crop is then a copy of whole
    # rows, which is several times faster than gathering single pixels.
    length = width * channels
    runs = padded.as_strided((padded.numel() - length + 1, length), (1, 1))
    down, right = offsets[0].view(count, 1), offsets[1].view(count, 1)
    first = torch.arange(count, device=device).view(count, 1) * tall + torch.arange(height, device=device)
    starts = ((first + down) * wide + right) * channels
    cropped = runs.index_select(0, starts.view(-1)).view(count, height, width, channels)
    cropped.index_copy_(0, flipped, cropped.index_select(0, flipped).flip(2))
    return cropped.permute(0, 3, 1, 2)
