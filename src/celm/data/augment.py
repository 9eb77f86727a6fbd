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
    """
    count, channels, height, width = inputs.shape
    device = inputs.device
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator).to(device)
    flipped = torch.randint(0, 2, (count,), generator=generator).nonzero().view(-1).to(device)

    tall, wide = height + 2 * padding, width + 2 * padding
    fill = fill.to(inputs).view(1, channels, 1, 1)
    padded = fill.expand(count, channels, tall, wide).contiguous()
    padded[:, :, padding : padding + height, padding : padding + width] = inputs

    # Every run of `width` values in memory is a candidate row: a crop is then a copy of whole rows, which is
    # several times faster than gathering single pixels.
    rows = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    down, right = offsets[0].view(count, 1, 1), offsets[1].view(count, 1, 1)
    planes = torch.arange(count * channels, device=device).view(count, channels, 1) * tall
    starts = (planes + torch.arange(height, device=device) + down) * wide + right
    cropped = rows.index_select(0, starts.view(-1)).view(count, channels, height, width)
    return cropped.index_copy_(0, flipped, cropped.index_select(0, flipped).flip(3))
