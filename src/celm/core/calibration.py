"""Calibrated evidence: logits in units of their spread on noise, so that scaling a model cannot raise it.

    μ_ic, σ_ic  = mean and standard deviation of s_c(x; w_i) over n inputs x ~ N(0, I), the same for all models
    σ_i²        = (1/K) Σ_c σ_ic²
    g, h        = (s - μ_i) / σ_i of class c and of the next best class, at the input that the probe of c reaches
    g_ic        = max(0, min(g, (g - h) / κ))                    gain, which counts only above the other classes
    a_ic        = g_ic / max_c g_ic                              height: gain relative to the client's best class
    z_ic        = g_ic σ_i / σ_ic                                gain in units of the class's own spread
    b_ic        = z_ic / max(max_c z_ic, median_j max_c z_jc)    clarity: z relative to this and other clients' best
    q_ic        = max(0, min(a_ic, b_ic) - τ) / (1 - τ)          evidence, between 0 and 1

**Covered.** Logits times a positive number, plus a constant for each class, give the same (s - μ) / σ up to rounding.
So a client gains nothing if it scales its head, or the layers of a ReLU network without biases. Constants so large
that float32 loses the rest leave no evidence. A copied row of the head raises h along with g, so neither class counts.

**Not covered.** A scaled row changes its a but not its b, so it gains as long as a was the smaller one. A row of
another origin, drawn at random or taken from the global model, rises like a learnt class.

**Untrained models.** Let m_i = σ_i max_c g_ic, the gain of a client's best class in raw units. A client has no evidence
if m_i is below γ times the median of all clients. Scaling above that bound gains nothing. If the delivered models are
known, an idle client has no evidence either (celm.core.idle_detection).

The median of an even number of values is the lower one. The global model's level (Eq. 8) is not used: the classes of a
client are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from celm.base.randomness import make_generator
from celm.core.model_stack import BatchedForward, target_index

NUM_NOISE, _NOISE_BATCH = 512, 64
EVIDENCE_FLOOR = 0.35
"""τ: the fraction of its best class that a class must exceed to count."""
MIN_TRAINED_RATIO = 0.4
"""γ. After a few rounds on FashionMNIST, untrained models reach at most 0.34 of the median, trained ones at least
0.63."""
MARGIN = 0.1
"""κ: the fraction of its height by which a class must exceed the next one to count in full."""
_RELATIVE_EPS = 1e-5
"""A logit whose spread is below this fraction of its mean carries no information in float32."""
MIN_DIVISOR = 1e-30


@dataclass(frozen=True)
class Calibration:
    """Logits of M models on noise: mean and standard deviation by class `[M, K]`, and the RMS of the latter `[M]`."""

    mean: Tensor
    std: Tensor
    rms_std: Tensor

    def __getitem__(self, models: slice) -> Calibration:
        return Calibration(self.mean[models], self.std[models], self.rms_std[models])

    @property
    def scale(self) -> Tensor:
        """Return the divisor of each model's logits `[M]`; infinite for a constant model."""
        return torch.where(self.rms_std > 0, self.rms_std, torch.inf)

    @property
    def is_degenerate(self) -> Tensor:
        """Return a mask `[M]` of models whose logits vary by no more than rounding of their mean."""
        return (self.rms_std == 0) & (self.mean != 0).any(dim=1)

    def standardise(self, logits: Tensor) -> Tensor:
        """Return raw logits `[M, K]` in units of their model's spread."""
        return (logits - self.mean) / self.scale[:, None]

    def wrap(self, forward: BatchedForward) -> BatchedForward:
        """Return the forward of logits `[M, k, K]` in units of their model's spread; 0 for a constant model."""
        mean, scale = self.mean[:, None], self.scale[:, None, None]
        return _CalibratedForward(lambda x: (forward(x) - mean) / scale, forward, scale.view(-1))


@dataclass(frozen=True)
class CalibratedLogits:
    """The probe transform that raises calibrated logits and returns gains g_ic; it measures a `Calibration`."""

    seed: int = 0
    """Seed of the noise inputs."""

    def apply(
        self, forward: BatchedForward, models: int, shape: tuple[int, ...], device: torch.device
    ) -> tuple[BatchedForward, Calibration]:
        calibration = calibrate(forward, shared_noise(self.seed, models, shape, device=device))
        return calibration.wrap(forward), calibration

    def concat(self, measurements: Sequence[Calibration], classes: Sequence[int]) -> Calibration:
        columns = torch.tensor(classes)
        mean = torch.cat([part.mean.cpu() for part in measurements])[:, columns]
        std = torch.cat([part.std.cpu() for part in measurements])[:, columns]
        return Calibration(mean, std, torch.cat([part.rms_std.cpu() for part in measurements]))


@dataclass(frozen=True)
class _CalibratedForward(BatchedForward):
    """Logits in units of a spread `[M]`."""

    raw: BatchedForward
    scale: Tensor

    def input_gradient(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.raw.input_gradient(x, targets) / self.scale.view(-1, *[1] * (x.ndim - 1))

    def target_logits(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the gain g_ic of its target at every `x[m, j]`."""
        logits, index = self(x), target_index(x, targets)
        target = logits.gather(2, index)
        if logits.shape[2] == 1:
            return target.squeeze(2)
        runner_up = logits.scatter(2, index, -torch.inf).amax(2, keepdim=True)
        return torch.minimum(target, (target - runner_up) / MARGIN).clamp_min(0).squeeze(2)


@torch.no_grad()
def calibrate(forward: BatchedForward, noise: Tensor) -> Calibration:
    """Measure the logits of M models on noise `[M, n, *shape]`, a few inputs at a time."""
    logits = torch.cat([forward(part) for part in torch.split(noise, _NOISE_BATCH, dim=1)], dim=1)
    mean = logits.double().mean(dim=1)
    std = logits.double().std(dim=1)
    std = torch.where(std < _RELATIVE_EPS * mean.abs(), 0.0, std)
    rms_std = std.square().mean(dim=1).sqrt()
    return Calibration(mean.to(logits), std.to(logits), rms_std.to(logits))


def shared_noise(
    seed: int,
    models: int,
    shape: tuple[int, ...],
    count: int = NUM_NOISE,
    device: torch.device | None = None,
) -> Tensor:
    """Return the same `count` standard normal inputs for each model, `[M, n, *shape]`, as a view of one copy."""
    noise = torch.randn(count, *shape, generator=make_generator(seed, "calibration")).to(device)
    return noise.expand(models, *noise.shape)


def calibrated_evidence(gains: Tensor, calibration: Calibration, exclude: Tensor | None = None) -> Tensor:
    """Return Q `[N, K]` in float64 from the gains `[N, K]` of a probe with `CalibratedLogits`.

    Clients in the mask `exclude` `[N]` have no evidence and do not count in medians.
    """
    std, rms_std = calibration.std.double(), calibration.rms_std.double()
    positive_gains = gains.double().clamp_min(0)
    usable = positive_gains.isfinite().all(1) & std.isfinite().all(1)
    if exclude is not None:
        usable &= ~exclude
    positive_gains = torch.where(usable[:, None], positive_gains, 0.0)
    z = (positive_gains * rms_std[:, None] / std.clamp_min(MIN_DIVISOR)).nan_to_num(0.0)
    best, best_z = positive_gains.amax(1, keepdim=True), z.amax(1, keepdim=True)
    size = best.squeeze(1) * rms_std.nan_to_num(0.0)
    counted = usable & (size > 0)
    if not counted.any():
        return torch.zeros_like(positive_gains)
    trained = counted & (size >= MIN_TRAINED_RATIO * size[counted].median())
    median_z = best_z[counted].median()
    height = positive_gains / best.clamp_min(MIN_DIVISOR)
    clarity = z / torch.maximum(best_z, median_z).clamp_min(MIN_DIVISOR)
    Q = (torch.minimum(height, clarity) - EVIDENCE_FLOOR).clamp_min(0) / (1 - EVIDENCE_FLOOR)
    return torch.where(trained[:, None], Q, 0.0)
