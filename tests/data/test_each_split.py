"""Each split by its definition: the authors' tables are reproduced exactly."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from celm.base.errors import CelmError
from celm.data.splits.dirichlet import Dirichlet
from celm.data.splits.helpers import resolve_min_labels, resolve_rare_classes
from support.split_tables import CIFAR, FASHION, count_table, make_split, split_labels


def fidelity(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Jensen-Shannon and Hellinger distance of the joint client x class distribution from uniform."""
    p = counts.ravel() / counts.sum()
    q = np.full(p.size, 1 / p.size)
    return round(float(jensenshannon(p, q)), 3), round(float(np.sqrt(1 - np.sqrt(p * q).sum())), 3)


def test_dirichlet_gives_the_authors_fashion_mnist_table() -> None:
    counts = count_table(make_split("dirichlet", alpha=0.05), FASHION)
    assert counts.tolist() == [
        [0, 584, 0, 0, 14, 0, 4355, 0, 0, 11],
        [1, 0, 5984, 0, 0, 0, 0, 5645, 0, 5988],
        [0, 0, 0, 0, 0, 4852, 1517, 0, 0, 0],
        [0, 5415, 6, 0, 0, 1148, 0, 154, 5999, 1],
        [5999, 1, 10, 6000, 5986, 0, 128, 201, 1, 0],
    ]
    assert fidelity(counts) == (0.613, 0.693)


def test_dirichlet_gives_the_authors_cifar_table() -> None:
    counts = count_table(make_split("dirichlet", alpha=0.01), CIFAR)
    assert counts.tolist() == [
        [0, 0, 0, 0, 0, 0, 4803, 0, 0, 0],
        [0, 0, 4999, 0, 0, 0, 0, 4999, 0, 5000],
        [0, 0, 0, 0, 0, 4995, 196, 0, 0, 0],
        [0, 4999, 0, 0, 0, 5, 0, 0, 5000, 0],
        [5000, 1, 1, 5000, 5000, 0, 1, 1, 0, 0],
    ]
    assert fidelity(counts) == (0.646, 0.735)


def test_dirichlet_defaults_to_the_papers_middle_alpha() -> None:
    assert Dirichlet().alpha == 0.05


@pytest.mark.parametrize("alpha", [1e-300, 1e-5, 1e6])
def test_dirichlet_uses_every_sample_at_any_alpha(alpha: float) -> None:
    assert count_table(make_split("dirichlet", alpha=alpha), FASHION).sum(axis=0).tolist() == [6000] * 10


def test_dirichlet_redraws_until_every_client_has_enough() -> None:
    labels = np.repeat(np.arange(10), 20)
    without = [
        count_table(make_split("dirichlet", alpha=0.05), labels, seed=s).sum(axis=1).min() for s in range(20)
    ]
    assert min(without) < 10
    split = make_split("dirichlet", alpha=0.05, min_samples=10)
    assert all(count_table(split, labels, seed=s).sum(axis=1).min() >= 10 for s in range(20))


def test_dirichlet_without_need_to_redraw_is_the_plain_draw() -> None:
    plain, floored = (
        split_labels(make_split("dirichlet"), FASHION),
        split_labels(make_split("dirichlet", min_samples=100), FASHION),
    )
    assert all(np.array_equal(plain.clients[name], floored.clients[name]) for name in plain.clients)


def test_iid_is_dirichlet_with_alpha_100() -> None:
    iid, dirichlet = (
        split_labels(make_split("iid"), FASHION),
        split_labels(make_split("dirichlet", alpha=100), FASHION),
    )
    assert all(np.array_equal(iid.clients[name], dirichlet.clients[name]) for name in iid.clients)


@pytest.mark.parametrize("clients", [1, 7, 37, 40])
def test_iid_leaves_no_client_empty(clients: int) -> None:
    counts = count_table(make_split("iid"), np.repeat(np.arange(10), 4), clients)
    assert counts.sum(axis=1).min() >= 1
    assert counts.sum() == 40


@pytest.mark.parametrize(
    ("seed", "size", "distances"), [(42, 5920, (0.511, 0.589)), (43, 6000, (0.508, 0.586))]
)
def test_pls_gives_the_authors_distances(seed: int, size: int, distances: tuple[float, float]) -> None:
    counts = count_table(make_split("pls"), FASHION, seed=seed)
    assert (counts > 0).sum(axis=1).tolist() == [2, 3, 4, 5, 9]
    assert counts.sum(axis=1).tolist() == [size] * 5
    # .5885 lies on the edge of rounding: the cut to equal size moves single samples.
    assert fidelity(counts) == pytest.approx(distances, abs=1e-3)


def test_pls_gives_the_authors_cifar_sizes_with_their_settings() -> None:
    split = make_split("pls", max_samples=2000, min_samples=100)
    sizes = [count_table(split, CIFAR, seed=seed).sum(axis=1).tolist() for seed in range(40, 50)]
    assert [4000] * 5 in sizes


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 10])
def test_pls_covers_every_class_on_request(clients: int) -> None:
    labels = np.repeat(np.arange(10), 30)
    plain = [count_table(make_split("pls"), labels, clients, seed) for seed in range(30)]
    assert any((counts.sum(axis=0) == 0).any() for counts in plain)
    for seed, former in enumerate(plain):
        counts = count_table(make_split("pls", cover=True), labels, clients, seed)
        assert (counts.sum(axis=0) > 0).all()
        assert counts.sum(axis=1).tolist() == former.sum(axis=1).tolist()
        if (former.sum(axis=0) > 0).all():
            assert counts.tolist() == former.tolist()


def test_pls_cover_gives_the_missing_class_an_even_part_of_the_broadest_client() -> None:
    plain, covered = (
        count_table(make_split("pls", cover=cover), FASHION, seed=62) for cover in (False, True)
    )
    assert plain[:, 9].sum() == 0
    assert covered[:4].tolist() == plain[:4].tolist()
    assert covered[4] == pytest.approx(np.full(10, 600), abs=10)


@pytest.mark.parametrize("clients", [1, 2, 10, 20, 50])
def test_pls_defaults_suffice_for_any_number_of_clients(clients: int) -> None:
    labels = np.repeat(np.arange(10), 144)
    for seed in range(20):
        assert count_table(make_split("pls"), labels, clients, seed).sum(axis=1).min() > 0


@pytest.mark.parametrize(("classes", "labels"), [(10, 2), (47, 10), (100, 20), (1, 1), (8, 2)])
def test_default_min_labels_are_the_authors(classes: int, labels: int) -> None:
    assert resolve_min_labels(None, classes) == labels


def test_sls_gives_the_authors_table_and_distances() -> None:
    counts = count_table(make_split("sls", order="identity"), FASHION)
    assert counts.tolist() == [
        [1200] * 2 + [0] * 8,
        [1200] * 2 + [1500] * 2 + [0] * 6,
        [1200] * 2 + [1500] * 2 + [2000] * 2 + [0] * 4,
        [1200] * 2 + [1500] * 2 + [2000] * 2 + [3000] * 2 + [0] * 2,
        [1200] * 2 + [1500] * 2 + [2000] * 2 + [3000] * 2 + [6000] * 2,
    ]
    assert counts.sum(axis=1).tolist() == [2400, 5400, 9400, 15400, 27400]
    assert fidelity(count_table(make_split("sls"), CIFAR)) == (0.433, 0.5)


def test_sls_order_is_drawn_per_seed() -> None:
    holders = {
        tuple((count_table(make_split("sls"), FASHION, seed=seed)[0] > 0).tolist()) for seed in range(5)
    }
    assert len(holders) > 1


def test_sls_not_nested_is_the_later_published_draw() -> None:
    assert fidelity(count_table(make_split("sls", nested=False), FASHION)) == pytest.approx(
        (0.417, 0.486), abs=1e-3
    )


@pytest.mark.parametrize(("classes", "clients"), [(47, 5), (10, 4), (10, 20), (8, 6), (10, 1)])
def test_sls_leaves_no_class_out(classes: int, clients: int) -> None:
    counts = count_table(make_split("sls"), np.repeat(np.arange(classes), 100), clients, classes=classes)
    assert counts.sum(axis=0).tolist() == [100] * classes
    assert (np.diff((counts > 0).sum(axis=1)) >= 0).all()


def test_maverick_gives_the_papers_split() -> None:
    partition = split_labels(make_split("maverick"), FASHION)
    assert partition.rare_classes == (7, 8, 9)
    counts = count_table(make_split("maverick"), FASHION)
    assert counts.tolist() == [[0] * 7 + [6000] * 3, *([[1500] * 7 + [0] * 3] * 4)]


def test_maverick_options() -> None:
    shared = count_table(make_split("maverick", mavericks=2, rare_classes=[0]), FASHION)
    assert shared[:, 0].tolist() == [3000, 3000, 0, 0, 0]
    plus = count_table(make_split("maverick", include_common=True), FASHION)
    assert plus[0].tolist() == [1200] * 7 + [6000] * 3
    leaky = count_table(make_split("maverick", leak=0.1), FASHION)
    assert leaky[:, 9].tolist() == [5400, 150, 150, 150, 150]
    equal = count_table(make_split("maverick", equalize=True), FASHION)
    assert equal.sum(axis=1).tolist() == [10500] * 5
    assert (equal[1:, 7:] == 0).all()


@pytest.mark.parametrize(("classes", "rare"), [(10, (7, 8, 9)), (8, (6, 7)), (2, (1,))])
def test_default_rare_classes(classes: int, rare: tuple[int, ...]) -> None:
    assert resolve_rare_classes(None, classes) == rare


def test_free_rider_keeps_two_labels_that_all_hold() -> None:
    counts = count_table(make_split("free_rider"), FASHION)
    assert sorted(counts[0].tolist()) == [0] * 8 + [1200] * 2
    assert counts[1:].tolist() == [[1200] * 10] * 4


def test_honest_data_do_not_depend_on_the_kind_of_free_rider() -> None:
    kinds = ["few_labels", "repeated_samples", "random_labels", "copy_global", "noise", "replay_delta"]
    for name in ("free_rider", "frm"):
        partitions = [split_labels(make_split(name, kind=kind), FASHION) for kind in kinds]
        assert all(partition.free_riders == ("client-0",) for partition in partitions)
        for client in ("client-1", "client-4"):
            assert all(np.array_equal(d.clients[client], partitions[0].clients[client]) for d in partitions)
        attacks = [dict(partition.attacks) for partition in partitions]
        assert attacks == [
            {},
            {},
            {},
            {"client-0": {"name": "copy_global", "strength": 0.0}},
            {"client-0": {"name": "copy_global", "strength": 1.0}},
            {"client-0": {"name": "replay_delta"}},
        ]


def test_free_rider_repeats_a_few_samples_up_to_the_mean_size() -> None:
    rows = split_labels(make_split("free_rider", kind="repeated_samples", repeats_of=10), FASHION).clients[
        "client-0"
    ]
    assert len(rows) == 12000
    assert len(set(rows.tolist())) <= 10


def test_free_rider_with_random_labels_keeps_its_samples() -> None:
    partition = split_labels(make_split("free_rider", kind="random_labels"), FASHION)
    lies = partition.relabelled["client-0"]
    assert lies.dtype == np.int64
    assert len(lies) == len(partition.clients["client-0"]) == 12000
    assert np.mean(lies == FASHION[partition.clients["client-0"]]) == pytest.approx(0.1, abs=0.02)


def test_frm_has_a_free_rider_first_and_a_maverick_last() -> None:
    partition = split_labels(make_split("frm"), FASHION)
    assert (partition.free_riders, partition.rare_classes) == (("client-0",), (7, 8, 9))
    counts = count_table(make_split("frm"), FASHION)
    assert sorted(counts[0, :7].tolist()) == [0] * 5 + [1500] * 2
    assert counts[1:].tolist() == [*([[1500] * 7 + [0] * 3] * 3), [0] * 7 + [6000] * 3]
    assert counts[0, 7:].sum() == 0


def test_natural_has_the_named_clients_in_natural_order() -> None:
    labels = np.array([0, 1, 0, 1, 1])
    owners = ["site-10", "site-2", "site-10", "site-1", "site-2"]
    partition = make_split("natural").partition(labels, 2, 99, np.random.RandomState(0), owners)
    assert {name: rows.tolist() for name, rows in partition.clients.items()} == {
        "site-1": [3],
        "site-2": [1, 4],
        "site-10": [0, 2],
    }
    assert list(partition.clients) == ["site-1", "site-2", "site-10"]


def test_natural_needs_client_names() -> None:
    with pytest.raises(CelmError, match="does not name the client"):
        split_labels(make_split("natural"), FASHION)
    with pytest.raises(CelmError, match="2 client names for 3"):
        make_split("natural").partition(np.array([0, 1, 0]), 2, 2, np.random.RandomState(0), ["a", "b"])
