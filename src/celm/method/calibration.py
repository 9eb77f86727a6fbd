"""Evidence that cannot be bought by scale: logits in units of how much they vary on noise.

    μ_ic, σ_ic  = mean and deviation of s_c(x; w_i) over n inputs x ~ N(0, I), the same for all models
    σ_i²        = (1/K) Σ_c σ_ic²
    g           = what the probe of class c reaches on (s_c - μ_ic) / σ_i,  h  the same of the next best class there
    g_ic        = max(0, min(g, (g - h) / κ))                as far as it is this class that rises
    a_ic        = g_ic / max_c g_ic                          how high it rises, beside the client's best class
    z_ic        = g_ic σ_i / σ_ic                            the same in units of its own spread,
    b_ic        = z_ic / max(max_c z_ic, median_j max_c z_jc)       beside the best of this and of other clients
    q_ic        = max(0, min(a_ic, b_ic) - τ) / (1 - τ)      evidence, between 0 and 1

A client's logits times any positive number, plus any constants for each class, give the same (s - μ) / σ up to
rounding, hence the same probe and the same evidence: whoever scales the head, or scales layers of a ReLU network
without biases, gains nothing. (Constants so large that float32 loses the rest leave no evidence.) A row of the head
that is copied raises h along with g, so neither class counts. A row that is scaled changes its a but not its b, so it
gains as far as a was the lesser; a row of other origin, drawn or taken from the global model, rises like a class that
was learnt, and nothing here tells them apart. So that a model that was never trained does not pass for a broad one, a
client whose best logit rises less than γ of the median of all, in its own units (m_i = σ_i max_c g_ic), has no
evidence; to scale up beyond that gains nothing. Nor has one that does not work (celm.method.movement), where it is
known what the clients were sent. Of an even number, the median is the lower one.

The paper's level of the global model (Eq. 8) has no part in this: what is compared is a client's own classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from celm.base.randomness import generator
from celm.method.stacking import Forward, places

SAMPLES, AT_ONCE = 512, 64
FLOOR = 0.35
"""τ: the part of its best class that a class must reach to count as known at all."""
SIGN_OF_TRAINING = 0.4
"""γ: of models after a few rounds on FashionMNIST, untrained ones reach at most 0.34, trained ones at least 0.63."""
OWN = 0.1
"""κ: the part of its height by which a class must be above the next one to count in full."""
ROUNDING = 1e-5
"""A logit that varies by less than this part of its level says nothing in float32."""
TINY = 1e-30


@dataclass(frozen=True)
class Calibration:
    """How the logits of M models lie on noise: level and spread of each class `[M, K]`, and spread overall `[M]`."""

    level: Tensor
    spread: Tensor
    overall: Tensor

    def __getitem__(self, models: slice) -> Calibration:
        return Calibration(self.level[models], self.spread[models], self.overall[models])

    @property
    def unit(self) -> Tensor:
        """What logits are divided by `[M]`: those of a model that does not vary come to nothing."""
        return torch.where(self.overall > 0, self.overall, torch.inf)

    @property
    def drowned(self) -> Tensor:
        """Which models `[M]` vary only as much as rounding does beside their level."""
        return (self.overall == 0) & (self.level != 0).any(dim=1)

    def gains(self, logits: Tensor) -> Tensor:
        """Raw logits `[M, K]` in units of their model's spread."""
        return (logits - self.level) / self.unit[:, None]

    def applied(self, forward: Forward) -> Forward:
        """Logits `[M, k, K]` in units of their spread on noise; those of a constant model are 0."""
        level, scale = self.level[:, None], self.unit[:, None, None]
        return Calibrated(lambda x: (forward(x) - level) / scale, forward, scale.view(-1))


@dataclass(frozen=True)
class Calibrated(Forward):
    """Logits in units of a spread `[M]`."""

    raw: Forward
    scale: Tensor

    def slope(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.raw.slope(x, targets) / self.scale.view(-1, *[1] * (x.ndim - 1))

    def reached(self, x: Tensor, targets: Tensor) -> Tensor:
        """g: how high the logit of its class has risen at every `x[m, j]`, as far as others have not."""
        logits, wanted = self(x), places(x, targets)
        own = logits.gather(2, wanted)
        if logits.shape[2] == 1:
            return own.squeeze(2)
        other = logits.scatter(2, wanted, -torch.inf).amax(2, keepdim=True)
        return torch.minimum(own, (own - other) / OWN).clamp_min(0).squeeze(2)


@torch.no_grad()
def calibrate(forward: Forward, noise: Tensor) -> Calibration:
    """On the same inputs `[M, n, *shape]` for all models, a few at a time."""
    logits = torch.cat([forward(part) for part in torch.split(noise, AT_ONCE, dim=1)], dim=1)
    level = logits.double().mean(dim=1)
    spread = logits.double().std(dim=1)
    spread = torch.where(spread < ROUNDING * level.abs(), 0.0, spread)
    overall = spread.square().mean(dim=1).sqrt()
    return Calibration(level.to(logits), spread.to(logits), overall.to(logits))


def common_noise(
    seed: int, models: int, shape: tuple[int, ...], device: torch.device | None = None
) -> Tensor:
    """The same standard normal inputs for each of `models` models, `[M, n, *shape]`, in memory once."""
    drawn = torch.randn(SAMPLES, *shape, generator=generator(seed, "calibration")).to(device)
    return drawn.expand(models, *drawn.shape)


def together(parts: Sequence[Calibration], classes: Sequence[int]) -> Calibration:
    """Of all models, on the CPU, for these classes."""
    columns = torch.tensor(classes)
    level = torch.cat([part.level.cpu() for part in parts])[:, columns]
    spread = torch.cat([part.spread.cpu() for part in parts])[:, columns]
    return Calibration(level, spread, torch.cat([part.overall.cpu() for part in parts]))


def calibrated_evidence(gains: Tensor, calibration: Calibration, idle: Tensor | None = None) -> Tensor:
    """Q `[N, K]` in float64 from the probe's gains `[N, K]`, in units of each model's overall spread.

    Clients that are `idle` `[N]` have no evidence, and no part in what is usual.
    """
    spread, overall = calibration.spread.double(), calibration.overall.double()
    reached = gains.double().clamp_min(0)
    readable = reached.isfinite().all(1) & spread.isfinite().all(1)
    if idle is not None:
        readable &= ~idle
    reached = torch.where(readable[:, None], reached, 0.0)
    own = (reached * overall[:, None] / spread.clamp_min(TINY)).nan_to_num(0.0)
    best, own_best = reached.amax(1, keepdim=True), own.amax(1, keepdim=True)
    size = best.squeeze(1) * overall.nan_to_num(0.0)
    counted = readable & (size > 0)
    if not counted.any():
        return torch.zeros_like(reached)
    trained = counted & (size >= SIGN_OF_TRAINING * size[counted].median())
    typical = own_best[counted].median()
    height = reached / best.clamp_min(TINY)
    clarity = own / torch.maximum(own_best, typical).clamp_min(TINY)
    found = (torch.minimum(height, clarity) - FLOOR).clamp_min(0) / (1 - FLOOR)
    return torch.where(trained[:, None], found, 0.0)
