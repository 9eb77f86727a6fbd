"""Random crops and flips of a batch, without a Python loop over samples.

    y[i, c, row, column] = padded(x)[i, c, row + down_i, column + right_i], mirrored if flip_i

with down, right uniform on 0 .. 2 * padding and flip a fair coin.
"""

from __future__ import annotations

import torch
from torch import Tensor


def crop_and_flip(inputs: Tensor, pad_value: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Return randomly cropped and flipped inputs of the same shape `[n, c, h, w]`.

    `pad_value` `[c]` fills the margin: black after normalisation. All random numbers are drawn on the CPU from
    `generator`, so the result does not depend on the device. Its memory layout has the channels last, which suits
    convolutions.
    """
    count, channels, height, width = inputs.shape
    device = inputs.device
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator).to(device)
    flipped = torch.randint(0, 2, (count,), generator=generator).nonzero().view(-1).to(device)

    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    padded = pad_value.to(inputs).expand(count, padded_height, padded_width, channels).contiguous()
    padded[:, padding : padding + height, padding : padding + width] = inputs.permute(0, 2, 3, 1)

    # With the channels last, each row of a crop is contiguous in memory. So a crop copies whole rows, which is
    # several times faster than gathering single pixels.
    length = width * channels
    windows = padded.as_strided((padded.numel() - length + 1, length), (1, 1))
    down, right = offsets[0].view(count, 1), offsets[1].view(count, 1)
    image_rows = torch.arange(count, device=device).view(count, 1) * padded_height
    first_rows = image_rows + torch.arange(height, device=device)
    crop_starts = ((first_rows + down) * padded_width + right) * channels
    cropped = windows.index_select(0, crop_starts.view(-1)).view(count, height, width, channels)
    cropped.index_copy_(0, flipped, cropped.index_select(0, flipped).flip(2))
    return cropped.permute(0, 3, 1, 2)
