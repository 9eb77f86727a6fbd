"""Similarity of images, to measure how much the final inputs of probes reveal of the training images.

    distance    d(x, y) = sqrt(mean (x̂ - ŷ)²)      x̂: x at mean 0 and standard deviation 1 over all its values
    similarity  SSIM(x, y) = mean over windows of (2 μ_x μ_y + C₁)(2 σ_xy + C₂) / ((μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂))
                Gaussian windows of 11 pixels and σ = 1.5, C₁ = 0.01², C₂ = 0.03², every image stretched to [0, 1]
    membership  AUROC = P(score of a member > score of a non-member) + P(they are equal) / 2

Both measures ignore brightness and contrast, because a picture that is too dark still shows a face. d = 0 is the
same picture, d = sqrt(2) an unrelated one, d = 2 its negative. Images are `[n, channels, height, width]`. If a
side has fewer than 11 pixels, the window is the largest odd number that fits.

Reference: Wang, Bovik, Sheikh & Simoncelli, Image Quality Assessment: From Error Visibility to Structural Similarity,
IEEE Transactions on Image Processing 2004.
"""

from __future__ import annotations

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

WINDOW = 11
SIGMA = 1.5
C1, C2 = 0.01**2, 0.03**2


def image_distances(images: Tensor, others: Tensor) -> Tensor:
    """Return d of every image to every other one `[n, m]`."""
    x, y = _standardise(images), _standardise(others)
    distance: Tensor = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / x.shape[1] ** 0.5
    return distance


def image_similarities(images: Tensor, others: Tensor) -> Tensor:
    """Return SSIM of every image with every other one `[n, m]`."""
    x, y = _stretch(images), _stretch(others)
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x, variance_y = _blur(x * x) - mean_x**2, _blur(y * y) - mean_y**2
    rows = []
    for image, mean, variance in zip(x, mean_x, variance_x, strict=True):
        covariance = _blur(image * y) - mean * mean_y
        numerator = (2 * mean * mean_y + C1) * (2 * covariance + C2)
        denominator = (mean**2 + mean_y**2 + C1) * (variance + variance_y + C2)
        rows.append((numerator / denominator).mean(dim=(1, 2, 3)))
    return torch.stack(rows)


def membership_auroc(members: Tensor, others: Tensor) -> float:
    """Return the AUROC of scores `[n]` of members, expected to be higher, against scores `[m]` of non-members."""
    is_member = torch.cat([torch.ones(len(members)), torch.zeros(len(others))])
    return float(roc_auc_score(is_member.numpy(), torch.cat([members, others]).double().numpy()))


def _standardise(images: Tensor) -> Tensor:
    """Flatten to `[n, values]`, each image at mean 0 and standard deviation 1; a constant image is all 0."""
    flat = images.double().flatten(1)
    flat = flat - flat.mean(dim=1, keepdim=True)
    return flat / flat.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-12)


def _stretch(images: Tensor) -> Tensor:
    """Stretch each image to [0, 1]; a constant image is all 0."""
    low = images.double().amin(dim=(1, 2, 3), keepdim=True)
    high = images.double().amax(dim=(1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp(min=1e-12)


def _blur(images: Tensor) -> Tensor:
    """Return the Gaussian-weighted mean over every complete window, channel by channel."""
    channels, height, width = images.shape[1:]
    for side, size in ((2, height), (3, width)):
        window = _gaussian_window(min(WINDOW, size - (1 - size % 2))).to(images)
        shape = [1, 1, 1, 1]
        shape[side] = -1
        images = F.conv2d(images, window.view(shape).repeat(channels, 1, 1, 1), groups=channels)
    return images


def _gaussian_window(size: int) -> Tensor:
    window = torch.exp(-((torch.arange(size, dtype=torch.float64) - size // 2) ** 2) / (2 * SIGMA**2))
    return window / window.sum()
