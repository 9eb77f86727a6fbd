"""The order of clients."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from celm.base.client_order import natural_sort_key, natural_sorted


def test_numbers_in_names_are_read_as_numbers() -> None:
    names = [f"client-{i}" for i in range(120)]
    shuffled = random.Random(0).sample(names, len(names))
    assert natural_sorted(shuffled) == names
    assert natural_sorted(["b", "a10b2", "a2", "a10b10", ""]) == ["", "a2", "a10b2", "a10b10", "b"]


def test_a_hostile_name_of_thousands_of_digits_sorts() -> None:
    """Python refuses to read so long a number; a client chooses its own name."""
    assert natural_sorted(["c" + "9" * 5000, "c10", "c" + "0" * 6000 + "7"]) == [
        "c" + "0" * 6000 + "7", "c10", "c" + "9" * 5000,
    ]  # fmt: skip


@given(st.lists(st.text(alphabet="ab-0129٣²", max_size=6), unique=True), st.randoms(use_true_random=False))
def test_order_does_not_depend_on_arrival(names: list[str], rng: random.Random) -> None:
    shuffled = list(names)
    rng.shuffle(shuffled)
    assert natural_sorted(shuffled) == natural_sorted(names)


@given(st.text(), st.text())
def test_different_names_are_never_equal(one: str, other: str) -> None:
    assert (natural_sort_key(one) == natural_sort_key(other)) == (one == other)


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_order_of_numbers_is_that_of_integers(one: int, other: int) -> None:
    assert (natural_sort_key(f"x{one}") < natural_sort_key(f"x{other}")) == (one < other)
