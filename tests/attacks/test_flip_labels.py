"""A client that trains on wrong labels: their number, their distribution, and their repeatability."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celm.attacks.flip_labels import FlipLabels

CLASSES = 10
LABELS = torch.arange(40000) % CLASSES


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("strength", [0.25, 0.5, 1.0])
def test_a_fraction_gets_a_label_drawn_from_all_classes(strength: float) -> None:
    """One in K of the drawn labels is the old one, so the fraction that changes is strength (1 - 1/K)."""
    flipped = FlipLabels(strength=strength).relabel(LABELS, CLASSES, noise())
    moved = flipped != LABELS
    assert float(moved.double().mean()) == pytest.approx(strength * (1 - 1 / CLASSES), abs=0.012)
    spread = torch.bincount(flipped[moved], minlength=CLASSES) / moved.sum()
    assert spread.tolist() == pytest.approx([1 / CLASSES] * CLASSES, abs=0.015)


def test_strength_zero_changes_nothing() -> None:
    assert torch.equal(FlipLabels(strength=0.0).relabel(LABELS, CLASSES, noise()), LABELS)


def test_at_full_strength_labels_are_independent_of_the_true_ones() -> None:
    flipped = FlipLabels().relabel(LABELS, CLASSES, noise())
    for label in range(CLASSES):
        counts = torch.bincount(flipped[label == LABELS], minlength=CLASSES) / 4000
        assert counts.tolist() == pytest.approx([0.1] * CLASSES, abs=0.025)


def test_the_same_noise_gives_the_same_labels() -> None:
    attack = FlipLabels(strength=0.5)
    assert torch.equal(attack.relabel(LABELS, CLASSES, noise(1)), attack.relabel(LABELS, CLASSES, noise(1)))
    assert not torch.equal(
        attack.relabel(LABELS, CLASSES, noise(1)), attack.relabel(LABELS, CLASSES, noise(2))
    )


def test_a_stronger_attack_flips_what_a_weaker_one_does_and_more() -> None:
    weak = FlipLabels(strength=0.3).relabel(LABELS, CLASSES, noise())
    strong = FlipLabels(strength=0.6).relabel(LABELS, CLASSES, noise())
    moved = weak != LABELS
    assert torch.equal(strong[moved], weak[moved])


def test_given_labels_are_not_overwritten_and_the_client_trains() -> None:
    kept = LABELS.clone()
    FlipLabels().relabel(LABELS, CLASSES, noise())
    assert torch.equal(LABELS, kept)
    assert FlipLabels().trains_in(1, 10)


@given(st.lists(st.integers(0, 4), max_size=20), st.floats(0, 1), st.integers(0, 100))
def test_labels_stay_labels(labels: list[int], strength: float, seed: int) -> None:
    given_labels = torch.tensor(labels, dtype=torch.int64)
    flipped = FlipLabels(strength=strength).relabel(given_labels, 5, noise(seed))
    assert flipped.shape == given_labels.shape
    assert flipped.dtype == torch.int64
    assert bool(((flipped >= 0) & (flipped < 5)).all())
