"""Whether a client still works: how far training moved its model, there where the global model knows its classes.

    x_c    the global model's probe inputs, one a class
    ŝ      logits in units of their spread on noise, minus their mean over classes   (celm.method.calibration)
    d_i    = rms over x_c and classes of  ŝ(x_c; w_i) - ŝ(x_c; w_i, as delivered)
    idle   where d_i < ω median_j d_j

Returning the model as it was sent, also with its head scaled, gives d = 0. Noise of the size of honest work hardly
moves these logits, since it is spread over all weights: that is what makes this a better sign than a norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from celm.method.calibration import calibrate, common_noise
from celm.method.forward import forward_of
from celm.method.probe import frozen
from celm.method.stacking import Stack

IDLE = 0.15
"""ω. Seen on FashionMNIST, over splits and rounds: honest clients 0.47 and more, copies with noise 0.07 and less."""


@torch.no_grad()
def movement(delivered: Stack, trained: Stack, inputs: Tensor, seed: int) -> Tensor:
    """d `[N]` of N clients in float64, from what they were sent and what they sent back; inputs `[K, *shape]`."""
    before, after = (centred(stack, inputs, seed) for stack in (delivered, trained))
    return (after - before).square().mean(dim=(1, 2)).sqrt().cpu()


def centred(stack: Stack, inputs: Tensor, seed: int) -> Tensor:
    """ŝ `[N, K, K]` in float64."""
    shape = tuple(inputs.shape[1:])
    device = next(iter(stack.states[0].values())).device
    with frozen(stack.module):
        forward = forward_of(stack, shape)
        forward = calibrate(forward, common_noise(seed, len(stack), shape).to(device)).applied(forward)
        logits = forward(inputs.to(device).expand(len(stack), *inputs.shape)).double()
    return logits - logits.mean(dim=2, keepdim=True)


def idle(moved: Tensor) -> Tensor:
    """Which clients `[N]` hardly moved beside the others; nobody where all stand still. What is not finite is idle.

    >>> idle(torch.tensor([1.0, 0.1, 2.0, 1.5]))
    tensor([False,  True, False, False])
    """
    readable = moved.isfinite()
    if not readable.any():
        return torch.zeros_like(readable)
    return ~readable | (moved < IDLE * moved[readable].median())
