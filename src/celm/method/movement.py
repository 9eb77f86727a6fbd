"""Whether a client works: how far training moved its model, there where the global model knows its classes.

    x_c     the global model's probe inputs, one a class
    ŝ       logits in units of their spread on noise, minus their mean over classes      (celm.method.calibration)
    v_i     the model that client i was sent,  w_i  the one that it sent back
    g_k     = w_g - w_g(t-k), the changes of the global model since its last few states

    of each weight tensor (biases and gains of normalisation do not count):
    ⊥       what is left when every row has lost its part along the same row of v_i
    δ_i     = (w_i - v_i)⊥ without its part in the span of the g_k⊥
    ρ_i     = min(10, median_j ||δ_j|| / ||δ_i||)

    m_i     = rms over x_c and classes of  ŝ(x_c; w_i) - ŝ(x_c; v_i)                what it does
    n_i     = the same of  v_i + ρ_i δ_i,  with the statistics of v_i               what of it is own work
    d_i     = min(10 m_i / median_j m_j,  n_i / median_j n_j)       medians of who moved, where they are 0 else
    idle    where d_i < ω

What a client that does not train has in hand is what it was sent, now and before, and noise. To return that, with
rows or layers scaled, gives d = 0, and so does to move once more along any changes that the global model has made of
late. A model that is only written in other weights has m = 0. Noise moves these logits less than honest work does,
since it is spread over all weights, and by ρ it counts as no larger; how much less depends on how far training has
come. Nor does it matter how much a client works, down to a tenth of what is usual: some have few samples. A client by
itself, or where nobody moved, can be compared with nobody: d is NaN, and says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from celm.method.calibration import TINY, calibrate, common_noise
from celm.method.forward import forward_of
from celm.method.probe import frozen, within_cache
from celm.method.stacking import Stack

Model = Mapping[str, Tensor]

LITTLE = 10
"""So many times less work than usual is work all the same."""
SAME = 1e-9
"""Changes whose difference is so small a part of them are one."""
IDLE = 0.22
"""ω. Seen on FashionMNIST, over splits and rounds: honest clients at least 0.29, and 0.4 but for one split; copies with
any noise at most 0.18 after the warm-up where clients differ, 0.25 where they are alike, and 0.6 in first rounds."""


@torch.no_grad()
def movement(
    delivered: Stack,
    trained: Stack,
    inputs: Tensor,
    seed: int,
    past: Sequence[Model] = (),
    at_once: int | None = None,
) -> Tensor:
    """d `[N]` of N clients in float64, from what they were sent and what they sent back; inputs `[K, *shape]`.

    `past` are states of the global model, the present one last. `at_once` bounds memory: so many clients at a time,
    where states are a sequence that reads each when asked, such as files.
    """
    usual = usual_lengths(delivered, trained, past)
    several = at_once or within_cache(delivered)
    moved: list[Tensor] = []
    own: list[Tensor] = []
    for first in range(0, len(trained), several):
        some = slice(first, first + several)
        does, works = changes(delivered[some], trained[some], inputs, seed, past, usual)
        moved.append(does)
        own.append(works)
    return torch.minimum(LITTLE * relative(torch.cat(moved)), relative(torch.cat(own)))


def usual_lengths(delivered: Stack, trained: Stack, past: Sequence[Model]) -> dict[str, float]:
    """median_j ||δ_j|| of each weight tensor."""
    lengths: dict[str, list[Tensor]] = {name: [] for name in weight_names(delivered)}
    for v, w in zip(delivered.states, trained.states, strict=True):
        for name, known in lengths.items():
            known.append(length(own_step(v[name], w[name], changes_of(name, past))))
    return {name: median_of_moved(torch.stack(known)) for name, known in lengths.items()}


def changes(
    delivered: Stack,
    trained: Stack,
    inputs: Tensor,
    seed: int,
    past: Sequence[Model],
    usual: Mapping[str, float],
) -> tuple[Tensor, Tensor]:
    """m and n `[N]`."""
    works = [own_part(*each, past, usual) for each in zip(delivered.states, trained.states, strict=True)]
    before = centred(delivered, inputs, seed)
    found = [centred(stack, inputs, seed) - before for stack in (trained, Stack(trained.module, works))]
    return found[0].square().mean(dim=(1, 2)).sqrt(), found[1].square().mean(dim=(1, 2)).sqrt()


def weight_names(stack: Stack) -> list[str]:
    """Of the tensors that count: biases and gains of normalisation do not."""
    names = [name for name, _ in stack.module.named_parameters(remove_duplicate=False)]
    return [name for name in names if name in stack.states[0] and stack.states[0][name].ndim > 1]


def own_part(delivered: Model, trained: Model, past: Sequence[Model], usual: Mapping[str, float]) -> Model:
    """v + ρ δ: what was sent and own work, as much as is usual."""
    own = dict(delivered)
    for name, most in usual.items():
        step = own_step(delivered[name], trained[name], changes_of(name, past))
        step *= (most / length(step).clamp_min(TINY)).clamp_max(LITTLE)
        own[name] = (delivered[name].cpu().double() + step).to(delivered[name])
    return own


def own_step(delivered: Tensor, trained: Tensor, changes: Sequence[Tensor]) -> Tensor:
    """δ of one tensor, in float64.

    >>> own_step(torch.eye(3), torch.tensor([[9.0, 5, 6], [0, 1, 0], [0, 0, 1]]), [torch.ones(3, 3)]).round(decimals=1)
    tensor([[ 0.0000,  3.2000,  4.2000],
            [-1.8000,  0.0000, -1.8000],
            [-1.8000, -1.8000,  0.0000]], dtype=torch.float64)
    """
    unit = rows(delivered)
    unit = unit / torch.linalg.vector_norm(unit, dim=1, keepdim=True).clamp_min(TINY)
    step = across(trained.cpu().double() - delivered.cpu().double(), unit)
    kept = [across(change, unit).flatten() for change in changes]
    kept = [change for change in kept if bool(change.any())]
    if kept:
        basis = spanning(torch.stack(kept, dim=1))
        step = step - (basis @ (basis.T @ step.flatten())).view_as(step)
    return step.view(delivered.shape)


def spanning(columns: Tensor) -> Tensor:
    """Orthonormal columns that span the same, fewer where some follow from others.

    >>> tuple(spanning(torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])).shape)
    (3, 1)
    """
    vectors, values, _ = torch.linalg.svd(columns, full_matrices=False)
    found: Tensor = vectors[:, values > SAME * values[0]]
    return found


def changes_of(name: str, past: Sequence[Model]) -> list[Tensor]:
    """g_k of one tensor."""
    return [past[-1][name].cpu().double() - model[name].cpu().double() for model in past[:-1]]


def across(tensor: Tensor, unit: Tensor) -> Tensor:
    """⊥: every row without its part along a row of length 1."""
    found = rows(tensor)
    return found - (found * unit).sum(dim=1, keepdim=True) * unit


def rows(tensor: Tensor) -> Tensor:
    return tensor.cpu().double().flatten(1)


def centred(stack: Stack, inputs: Tensor, seed: int) -> Tensor:
    """ŝ `[N, K, K]` in float64; NaN of models whose level drowns all else."""
    shape = tuple(inputs.shape[1:])
    device = next(iter(stack.states[0].values())).device
    with frozen(stack.module):
        forward = forward_of(stack, shape)
        calibration = calibrate(forward, common_noise(seed, len(stack), shape, device))
        forward = calibration.applied(forward)
        logits = forward(inputs.to(device).expand(len(stack), *inputs.shape)).cpu().double()
    logits = logits - logits.mean(dim=2, keepdim=True)
    return logits.masked_fill(calibration.drowned.cpu()[:, None, None], math.nan)


def relative(moved: Tensor) -> Tensor:
    """In units of the median (of who moved, where most did not); 0 where not finite, NaN with nobody to compare with.

    >>> relative(torch.tensor([0.0, 0.0, 0.0, 2.0, 2.0])), relative(torch.tensor([3.0]))
    (tensor([0., 0., 0., 1., 1.]), tensor([nan]))
    """
    usual = median_of_moved(moved)
    if not usual or len(moved) < 2:
        return torch.full_like(moved, math.nan)
    return (moved / usual).nan_to_num().where(moved.isfinite(), 0.0)


def median_of_moved(values: Tensor) -> float:
    """The median; where most are 0, that of the others."""
    return median(values) or median(values[values > 0])


def median(values: Tensor) -> float:
    """Of those that are finite the middle one, or the mean of the two in the middle: of two, one can be idle."""
    finite = values[values.isfinite()]
    return finite.quantile(0.5).item() if len(finite) else 0.0


def length(tensor: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(tensor)
    return found


def idle(moved: Tensor) -> Tensor:
    """Which clients `[N]` hardly moved beside the others, from what `movement` says.

    >>> idle(torch.tensor([1.0, 0.1, 2.0]))
    tensor([False,  True, False])
    """
    return moved < IDLE
