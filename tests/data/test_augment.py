"""Batched crops and flips against a loop over samples."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from celm.data.augment import crop_and_flip


def crop_one_by_one(inputs: Tensor, fill: Tensor, generator: torch.Generator, padding: int) -> Tensor:
    """Crop and flip with the same draws, one sample at a time."""
    count, _, height, width = inputs.shape
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
    flips = torch.randint(0, 2, (count,), generator=generator)
    results = []
    for index in range(count):
        image = torch.stack(
            [pad(c, (padding,) * 4, value=float(f)) for c, f in zip(inputs[index], fill, strict=True)]
        )
        down, right = int(offsets[0, index]), int(offsets[1, index])
        image = image[:, down : down + height, right : right + width]
        results.append(image.flip(2) if flips[index] else image)
    return torch.stack(results)


@given(
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 5),
    st.integers(0, 99),
)
def test_equals_a_loop_over_samples(n: int, c: int, h: int, w: int, padding: int, seed: int) -> None:
    inputs = torch.randn(n, c, h, w, generator=torch.Generator().manual_seed(seed))
    fill = torch.arange(c) - 5.0
    result = crop_and_flip(inputs, fill, torch.Generator().manual_seed(seed), padding)
    assert torch.equal(result, crop_one_by_one(inputs, fill, torch.Generator().manual_seed(seed), padding))


def test_is_a_function_of_the_generator_and_leaves_its_input_alone() -> None:
    inputs = torch.randn(16, 3, 8, 8)
    before = inputs.clone()
    fill = torch.zeros(3)
    first = crop_and_flip(inputs, fill, torch.Generator().manual_seed(1))
    torch.manual_seed(123)
    second = crop_and_flip(inputs, fill, torch.Generator().manual_seed(1))
    other = crop_and_flip(inputs, fill, torch.Generator().manual_seed(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(inputs, before)


def test_all_offsets_and_both_directions_occur() -> None:
    # One bright pixel in the middle: where it lands tells offset and flip apart from one another.
    inputs = torch.zeros(4000, 1, 9, 9)
    inputs[:, 0, 4, 3] = 1
    result = crop_and_flip(inputs, torch.zeros(1), torch.Generator().manual_seed(0), padding=1)
    seen = {(int(i) // 9, int(i) % 9) for i in result.view(4000, -1).argmax(1)}
    assert seen == {(row, column) for row in (3, 4, 5) for column in (2, 3, 4, 5, 6)}
