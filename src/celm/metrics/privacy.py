"""How near images come to others: what the inputs at which probes end give away of the images behind them.

    distance    d(x, y) = sqrt(mean (x̂ - ŷ)²)      x̂: x at mean 0 and standard deviation 1 over all its values
    similarity  SSIM(x, y) = mean over windows of (2 μ_x μ_y + C₁)(2 σ_xy + C₂) / ((μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂))
                Gaussian windows of 11 pixels and σ = 1.5, C₁ = 0.01², C₂ = 0.03², every image stretched to [0, 1]
    membership  AUROC = P(score of a member > score of a non-member) + P(they are equal) / 2

Both measures are blind to brightness and contrast, as a picture that shows a face too dark still shows it. d = 0 is the
same picture, d = sqrt(2) an unrelated one, d = 2 its negative. Images are `[n, channels, height, width]`. Where a
side has fewer than 11 pixels, the window is the largest odd number that fits.

Reference: Wang, Bovik, Sheikh & Simoncelli, Image Quality Assessment: From Error Visibility to Structural Similarity,
IEEE Transactions on Image Processing 2004.
"""

from __future__ import annotations

import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn import functional as F

WINDOW = 11
SIGMA = 1.5
C1, C2 = 0.01**2, 0.03**2


def distances(images: Tensor, others: Tensor) -> Tensor:
    """d of every image to every other one `[n, m]`."""
    x, y = standardised(images), standardised(others)
    found: Tensor = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / x.shape[1] ** 0.5
    return found


def similarities(images: Tensor, others: Tensor) -> Tensor:
    """SSIM of every image with every other one `[n, m]`."""
    x, y = stretched(images), stretched(others)
    mean_x, mean_y = blurred(x), blurred(y)
    power_x, power_y = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2
    rows = []
    for one, mean, power in zip(x, mean_x, power_x, strict=True):
        shared = blurred(one * y) - mean * mean_y
        alike = (2 * mean * mean_y + C1) * (2 * shared + C2)
        rows.append((alike / ((mean**2 + mean_y**2 + C1) * (power + power_y + C2))).mean(dim=(1, 2, 3)))
    return torch.stack(rows)


def auroc(members: Tensor, others: Tensor) -> float:
    """How well scores `[n]` and `[m]` tell members, who should have the higher ones, from others.

    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    n, m = len(members), len(others)
    ranks = rankdata(torch.cat([members, others]).double().numpy())
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def standardised(images: Tensor) -> Tensor:
    """Flat `[n, values]`, each at mean 0 and standard deviation 1; a constant image is all 0."""
    flat = images.double().flatten(1)
    flat = flat - flat.mean(dim=1, keepdim=True)
    return flat / flat.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-12)


def stretched(images: Tensor) -> Tensor:
    """Each from 0 to 1; a constant image is all 0."""
    low = images.double().amin(dim=(1, 2, 3), keepdim=True)
    high = images.double().amax(dim=(1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp(min=1e-12)


def blurred(images: Tensor) -> Tensor:
    """The mean over every whole window, weighted by a Gaussian, channel by channel."""
    channels, height, width = images.shape[1:]
    for side, size in ((2, height), (3, width)):
        window = gaussian(min(WINDOW, size - (1 - size % 2))).to(images)
        shape = [1, 1, 1, 1]
        shape[side] = -1
        images = F.conv2d(images, window.view(shape).repeat(channels, 1, 1, 1), groups=channels)
    return images


def gaussian(size: int) -> Tensor:
    window = torch.exp(-((torch.arange(size, dtype=torch.float64) - size // 2) ** 2) / (2 * SIGMA**2))
    return window / window.sum()
