"""Distances, structural similarity and membership, each against an independent computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_metrics import image_distances, image_similarities, membership_auroc
from torch import Tensor


def images(seed: int, count: int = 2, channels: int = 1, side: int = 13) -> Tensor:
    return torch.rand(count, channels, side, side + 1, generator=torch.Generator().manual_seed(seed))


def ssim_by_windows(one: np.ndarray, other: np.ndarray) -> float:
    """The definition of 2004, window by window, in plain loops."""
    one, other = ((x - x.min()) / (x.max() - x.min()) for x in (one, other))
    offsets = np.arange(11) - 5
    window = np.exp(-(offsets[:, None] ** 2 + offsets[None, :] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    found = []
    for x, y in zip(one, other, strict=True):
        for i in range(x.shape[0] - 10):
            for j in range(x.shape[1] - 10):
                a, b = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
                mean_a, mean_b = (window * a).sum(), (window * b).sum()
                power_a, power_b = (window * (a - mean_a) ** 2).sum(), (window * (b - mean_b) ** 2).sum()
                shared = (window * (a - mean_a) * (b - mean_b)).sum()
                alike = (2 * mean_a * mean_b + 1e-4) * (2 * shared + 9e-4)
                found.append(alike / ((mean_a**2 + mean_b**2 + 1e-4) * (power_a + power_b + 9e-4)))
    return float(np.mean(found))


@pytest.mark.parametrize("channels", [1, 3])
def test_similarity_is_that_of_its_definition(channels: int) -> None:
    one, other = images(0, 2, channels), images(1, 3, channels)
    other[0] = one[0] + 0.1 * other[0]
    found = image_similarities(one, other)
    for i in range(2):
        for j in range(3):
            expected = ssim_by_windows(one[i].double().numpy(), other[j].double().numpy())
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-9)


def test_distance_is_that_of_standardised_images() -> None:
    """sqrt(2 - 2 r), r Pearson's correlation of the pixels."""
    one, other = images(0, 3), images(1, 4)
    found = image_distances(one, other)
    for i in range(3):
        for j in range(4):
            r = np.corrcoef(one[i].flatten().double(), other[j].flatten().double())[0, 1]
            assert float(found[i, j]) == pytest.approx(math.sqrt(2 - 2 * r), abs=1e-6)


@given(st.integers(0, 50), st.floats(0.1, 10), st.floats(-3, 3), st.sampled_from([4, 7, 8, 13]))
@settings(deadline=None, max_examples=20)
def test_the_same_picture_is_found_at_any_contrast(
    seed: int, contrast: float, shift: float, side: int
) -> None:
    picture = images(seed, 1, 3, side)
    again = contrast * picture + shift
    assert float(image_distances(picture, again)) == pytest.approx(0, abs=1e-4)
    assert float(image_similarities(picture, again)) == pytest.approx(1, abs=1e-4)
    assert float(image_distances(picture, -again)) == pytest.approx(2, abs=1e-4)


@given(st.integers(0, 50))
@settings(deadline=None, max_examples=10)
def test_both_are_symmetric_and_bounded(seed: int) -> None:
    one, other = images(seed, 2), images(seed + 1000, 3)
    torch.testing.assert_close(image_distances(one, other), image_distances(other, one).T)
    torch.testing.assert_close(image_similarities(one, other), image_similarities(other, one).T)
    assert bool((image_distances(one, other) <= 2 + 1e-9).all())
    assert bool((image_similarities(one, other).abs() <= 1 + 1e-9).all())


def test_constant_images_are_far_from_all_and_give_no_nan() -> None:
    flat = torch.full((1, 1, 13, 14), 0.5)
    assert float(image_distances(flat, images(0, 1))) == pytest.approx(1)
    assert bool(image_similarities(flat, images(0, 1)).isfinite().all())


def test_unrelated_noise_lies_at_the_square_root_of_two() -> None:
    found = image_distances(images(0, 1, 3, 100), images(1, 1, 3, 100))
    assert float(found) == pytest.approx(math.sqrt(2), abs=0.02)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20)
)
def test_auroc_counts_pairs_and_ties_as_halves(members: list[int], others: list[int]) -> None:
    won = [(member > other) + (member == other) / 2 for member in members for other in others]
    assert membership_auroc(torch.tensor(members), torch.tensor(others)) == pytest.approx(np.mean(won))
