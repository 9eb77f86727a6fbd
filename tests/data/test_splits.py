"""Properties of all splits: disjoint parts, every sample used, settings checked, no global randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.data.split import Split
from support.split_tables import SPLITS, count_table, make_split, split_labels


@pytest.mark.parametrize(
    ("name", "options", "clients", "setting"),
    [
        ("dirichlet", {"alpha": 0}, 5, "alpha"),
        ("dirichlet", {"alpha": float("nan")}, 5, "alpha"),
        ("dirichlet", {"alpha": float("inf")}, 5, "alpha"),
        ("dirichlet", {"alpha": "0.1"}, 5, "alpha"),
        ("dirichlet", {"min_samples": 21}, 5, "min_samples"),
        ("dirichlet", {"alpha": 0.05, "min_samples": 20}, 5, "min_samples"),
        ("dirichlet", {}, 0, "clients"),
        ("iid", {}, 0, "clients"),
        ("iid", {}, 101, "clients"),
        ("pls", {"min_labels": 11}, 5, "min_labels"),
        ("pls", {"min_labels": 0}, 5, "min_labels"),
        ("pls", {"min_samples": 9, "max_samples": 8}, 5, "min_samples"),
        ("pls", {"max_samples": 10, "min_samples": 10}, 60, "max_samples"),
        ("pls", {}, 0, "clients"),
        ("sls", {"min_labels": 11}, 5, "min_labels"),
        ("sls", {"order": "sorted"}, 5, "order"),
        ("sls", {}, 101, "clients"),
        ("maverick", {"rare_classes": [10]}, 5, "rare_classes"),
        ("maverick", {"rare_classes": [-1]}, 5, "rare_classes"),
        ("maverick", {"rare_classes": [1, 1]}, 5, "rare_classes"),
        ("maverick", {"rare_classes": []}, 5, "rare_classes"),
        ("maverick", {"rare_classes": list(range(10))}, 5, "rare_classes"),
        ("maverick", {"mavericks": 5}, 5, "mavericks"),
        ("maverick", {"leak": 1.5}, 5, "leak"),
        ("maverick", {"leak": 1.0}, 5, "leak"),
        ("maverick", {}, 1, "clients"),
        ("free_rider", {"labels": 11}, 5, "labels"),
        ("free_rider", {"labels": 2}, 11, "labels"),
        ("free_rider", {"kind": "lazy"}, 5, "kind"),
        ("free_rider", {}, 1, "clients"),
        ("frm", {"labels": 8}, 5, "labels"),
        ("frm", {"rare_classes": [12]}, 5, "rare_classes"),
        ("frm", {}, 2, "clients"),
    ],
)
def test_an_impossible_split_names_the_setting(
    name: str, options: dict[str, Any], clients: int, setting: str
) -> None:
    labels = np.repeat(np.arange(10), 10)
    with pytest.raises(CelmError, match=rf"split\.{setting}\b") as error:
        split_labels(make_split(name, **options), labels, clients)
    assert "\n" not in str(error.value)


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(CelmError, match="did you mean 'alpha'"):
        make_split("dirichlet", alhpa=0.1)


@pytest.mark.parametrize("kind", SPLITS.values())
def test_every_split_has_a_one_line_summary(kind: type[Split]) -> None:
    first, blank = (kind.__doc__ or "").split("\n")[:2]
    assert first.endswith(".")
    assert not blank


PROPERTY = [
    ("iid", {}),
    ("dirichlet", {"alpha": 0.1}),
    ("dirichlet", {"alpha": 1e-4}),
    ("pls", {}),
    ("pls", {"cover": True}),
    ("sls", {}),
    ("sls", {"nested": False}),
    ("maverick", {}),
    ("maverick", {"mavericks": 2, "leak": 0.2, "include_common": True}),
    ("maverick", {"equalize": True}),
    ("free_rider", {}),
    ("free_rider", {"kind": "random_labels"}),
    ("frm", {}),
    ("frm", {"kind": "noise"}),
]
ALL_USED = [("iid", {}), ("dirichlet", {}), ("sls", {}), ("maverick", {}), ("maverick", {"leak": 0.3})]


@st.composite
def federations(draw: st.DrawFn) -> tuple[NDArray[np.int64], int, int, int]:
    """Labels of 4 to 12 classes of uneven size, in any order; the classes, the clients, a seed."""
    classes = draw(st.integers(4, 12))
    sizes = draw(st.lists(st.integers(20, 60), min_size=classes, max_size=classes))
    labels = np.random.RandomState(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(classes), sizes))
    return labels, classes, draw(st.integers(3, 8)), draw(st.integers(0, 2**32 - 1))


@pytest.mark.parametrize(("name", "options"), PROPERTY)
@settings(max_examples=25, deadline=None)
@given(federation=federations())
def test_parts_are_disjoint_and_the_same_for_the_same_seed(
    name: str, options: dict[str, Any], federation: tuple[NDArray[np.int64], int, int, int]
) -> None:
    labels, classes, clients, seed = federation
    partition, again = (
        split_labels(make_split(name, **options), labels, clients, seed, classes) for _ in range(2)
    )
    assert list(partition.clients) == [f"client-{i}" for i in range(clients)]
    rows = np.concatenate(list(partition.clients.values()))
    assert all(part.dtype == np.int64 for part in partition.clients.values())
    assert len(set(rows.tolist())) == len(rows)
    assert 0 <= rows.min() <= rows.max() < len(labels)
    for client, part in partition.clients.items():
        assert np.array_equal(part, again.clients[client])
    counts = np.array(list(partition.counts(labels, classes).values()))
    assert counts.shape == (clients, classes)
    if name == "pls" or options.get("equalize"):
        assert len(set(counts.sum(axis=1).tolist())) == 1
    if options.get("cover"):
        assert (counts.sum(axis=0) > 0).all()
    if name in ("maverick", "frm") and "leak" not in options:
        maverick = 0 if name == "maverick" else clients - 1
        rare = list(partition.rare_classes)
        assert np.delete(counts, maverick, axis=0)[:, rare].sum() == 0
        assert counts[maverick].sum() == counts[maverick, rare].sum() > 0


@pytest.mark.parametrize(("name", "options"), ALL_USED)
@settings(max_examples=25, deadline=None)
@given(federation=federations())
def test_every_sample_is_used(
    name: str, options: dict[str, Any], federation: tuple[NDArray[np.int64], int, int, int]
) -> None:
    labels, classes, clients, seed = federation
    partition = split_labels(make_split(name, **options), labels, clients, seed, classes)
    assert sorted(np.concatenate(list(partition.clients.values())).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("name", ["free_rider", "frm"])
@settings(max_examples=25, deadline=None)
@given(federation=federations())
def test_every_honest_client_holds_the_free_riders_labels(
    name: str, federation: tuple[NDArray[np.int64], int, int, int]
) -> None:
    labels, classes, clients, seed = federation
    counts = count_table(make_split(name), labels, clients, seed, classes)
    rider_classes = np.flatnonzero(counts[0])
    assert len(rider_classes) == 2
    honest = counts[1:-1] if name == "frm" else counts[1:]
    assert (honest[:, rider_classes] > 0).all()


def test_global_randomness_is_neither_used_nor_changed() -> None:
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    for name in set(SPLITS) - {"natural"}:
        split_labels(make_split(name), np.repeat(np.arange(10), 50))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
