"""Whether a client works: how far training moved its model, there where the global model knows its classes.

    x_c    the global model's probe inputs, one a class
    ŝ      logits in units of their spread on noise, minus their mean over classes   (celm.method.calibration)
    g      = w_g(t-1) - w_g(t-2), the last change of the global model
    Δ_i    = w_i - v_i, what the client did to the model v_i that it was sent
    δ_i    = Δ_i - (⟨Δ_i, g⟩ / ⟨g, g⟩) g, what of it is no repetition        of each tensor, as the next line
    ρ_i    = min(1, median_j ||δ_j|| / ||δ_i||)
    d_i    = rms over x_c and classes of  ŝ(x_c; v_i + ρ_i δ_i) - ŝ(x_c; v_i)
    idle   where d_i < ω median_j d_j

Returning the model as it was sent, also with its head scaled, gives d = 0, and so does to send the last change once
more, however strong. Noise hardly moves these logits unless it is far larger than honest work, since it is spread over
all weights, and by ρ nothing counts as larger: that is what makes this a better sign than a norm.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from celm.method.calibration import TINY, calibrate, common_noise
from celm.method.forward import forward_of
from celm.method.probe import frozen, within_cache
from celm.method.stacking import Stack

Model = Mapping[str, Tensor]

IDLE = 0.25
"""ω. Seen on FashionMNIST, over splits and rounds: honest clients at least 0.42, copies with any noise at most 0.14."""


@torch.no_grad()
def movement(
    delivered: Stack, trained: Stack, inputs: Tensor, seed: int, change: Model | None = None
) -> Tensor:
    """d `[N]` of N clients in float64, from what they were sent and what they sent back; inputs `[K, *shape]`.

    `change` is the last one of the global model, None where there was none yet.
    """
    change = change or {}
    # Statistics that a model keeps for itself are no work, and are those that it was sent.
    moving = [name for name, _ in trained.module.named_parameters() if name in trained.states[0]]
    pairs = list(zip(delivered.states, trained.states, strict=True))
    usual = {
        name: median(torch.stack([length(own_step(v[name], w[name], change.get(name))) for v, w in pairs]))
        for name in moving
    }
    several, found = within_cache(trained), []
    for first in range(0, len(trained), several):
        some = slice(first, first + several)
        sent, own = delivered[some], Stack(trained.module, [own_part(*p, change, usual) for p in pairs[some]])
        before, after = (centred(stack, inputs, seed) for stack in (sent, own))
        found.append((after - before).square().mean(dim=(1, 2)).sqrt().cpu())
    return torch.cat(found)


def own_part(delivered: Model, trained: Model, change: Model, usual: Model) -> Model:
    """v + ρ δ: the trained model without what repeats the change, and no further away than is usual."""
    own = dict(delivered)
    for name, most in usual.items():
        step = own_step(delivered[name], trained[name], change.get(name))
        own[name] = delivered[name] + step * (most / length(step).clamp_min(TINY)).clamp_max(1)
    return own


def own_step(delivered: Tensor, trained: Tensor, change: Tensor | None) -> Tensor:
    """δ of one tensor.

    >>> own_step(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 2.0]), torch.tensor([2.0, 0.0]))
    tensor([0., 1.])
    """
    step = trained - delivered
    if change is None or not bool(change.any()):
        return step
    unit = change / length(change)
    return step - (step * unit).sum() * unit


def median(values: Tensor) -> Tensor:
    """The middle one, or the mean of the two in the middle, so that of two clients one can be idle."""
    return values.quantile(0.5)


def length(tensor: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(tensor.float())
    return found


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
    return ~readable | (moved < IDLE * median(moved[readable]))
