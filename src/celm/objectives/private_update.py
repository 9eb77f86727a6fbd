"""Clipping and Gaussian noise of a client's update, which the client adds before it uploads.

    Δ = w_i - w_delivered, all trained parameters as one vector
    w_i <- w_delivered + Δ min(1, C / ||Δ||) + N(0, (σ C)²)         C = train.dp_clip, σ = train.dp_noise

This is client-level noise as in McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018,
but added by each client, so that the server never receives an update without it. celm does not count the privacy
budget. Buffers, such as running statistics, sample counts and reported accuracies are sent as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def privatise_update(
    delivered: Sequence[Tensor],
    trained: Sequence[Tensor],
    clip: float,
    noise: float,
    generator: torch.Generator,
) -> None:
    """Clip and noise the change from `delivered` to `trained`, which is overwritten.

    >>> trained = [torch.tensor([3.0, 5.0])]
    >>> privatise_update([torch.tensor([0.0, 1.0])], trained, 1.0, 0.0, torch.Generator())
    >>> trained
    [tensor([0.6000, 1.8000])]
    """
    changes = [after.detach() - before for before, after in zip(delivered, trained, strict=True)]
    norm = sum(change.double().square().sum() for change in changes) ** 0.5
    factor = min(1.0, clip / float(norm)) if norm else 1.0
    for before, after, change in zip(delivered, trained, changes, strict=True):
        after.copy_(before + factor * change)
        if noise:
            after += noise * clip * torch.randn(after.shape, generator=generator).to(after)
