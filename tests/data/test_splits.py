"""Splits: the authors' tables come out exactly; every sample goes where the definition says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from celm.base.errors import CelmError
from celm.base.registry import build
from celm.data.split import Dealing, Split
from celm.data.splits.dirichlet import Dirichlet
from celm.data.splits.free_rider import FreeRider
from celm.data.splits.frm import FreeRiderAndMaverick
from celm.data.splits.iid import Iid
from celm.data.splits.maverick import Maverick
from celm.data.splits.natural import Natural
from celm.data.splits.parts import fewest_labels, rare_or_last
from celm.data.splits.pls import PureLabelSkew
from celm.data.splits.sls import StepLabelSkew

KINDS: dict[str, type[Split]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "pls": PureLabelSkew,
    "sls": StepLabelSkew,
    "maverick": Maverick,
    "free_rider": FreeRider,
    "frm": FreeRiderAndMaverick,
    "natural": Natural,
}
FASHION = np.random.RandomState(0).permutation(np.repeat(np.arange(10), 6000))
CIFAR = np.random.RandomState(0).permutation(np.repeat(np.arange(10), 5000))


def make(name: str, **options: Any) -> Split:
    return build(KINDS[name], options, "split", name)


def deal(split: Split, labels: Any, clients: int = 5, seed: int = 42, classes: int = 10) -> Dealing:
    return split.deal(labels, classes, clients, np.random.RandomState(seed))


def table(
    split: Split, labels: Any, clients: int = 5, seed: int = 42, classes: int = 10
) -> NDArray[np.int64]:
    return np.array(list(deal(split, labels, clients, seed, classes).counts(labels, classes).values()))


def fidelity(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Jensen-Shannon and Hellinger distance of the joint client x class distribution from uniform."""
    p = counts.ravel() / counts.sum()
    q = np.full(p.size, 1 / p.size)
    return round(float(jensenshannon(p, q)), 3), round(float(np.sqrt(1 - np.sqrt(p * q).sum())), 3)


def test_dirichlet_gives_the_authors_fashion_mnist_table() -> None:
    counts = table(make("dirichlet", alpha=0.05), FASHION)
    assert counts.tolist() == [
        [0, 584, 0, 0, 14, 0, 4355, 0, 0, 11],
        [1, 0, 5984, 0, 0, 0, 0, 5645, 0, 5988],
        [0, 0, 0, 0, 0, 4852, 1517, 0, 0, 0],
        [0, 5415, 6, 0, 0, 1148, 0, 154, 5999, 1],
        [5999, 1, 10, 6000, 5986, 0, 128, 201, 1, 0],
    ]
    assert fidelity(counts) == (0.613, 0.693)


def test_dirichlet_gives_the_authors_cifar_table() -> None:
    counts = table(make("dirichlet", alpha=0.01), CIFAR)
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
def test_dirichlet_deals_every_sample_at_any_alpha(alpha: float) -> None:
    assert table(make("dirichlet", alpha=alpha), FASHION).sum(axis=0).tolist() == [6000] * 10


def test_dirichlet_redraws_until_every_client_has_enough() -> None:
    labels = np.repeat(np.arange(10), 20)
    without = [table(make("dirichlet", alpha=0.05), labels, seed=s).sum(axis=1).min() for s in range(20)]
    assert min(without) < 10
    split = make("dirichlet", alpha=0.05, min_samples=10)
    assert all(table(split, labels, seed=s).sum(axis=1).min() >= 10 for s in range(20))


def test_dirichlet_with_a_floor_that_holds_is_the_plain_draw() -> None:
    plain, floored = deal(make("dirichlet"), FASHION), deal(make("dirichlet", min_samples=100), FASHION)
    assert all(np.array_equal(plain.clients[name], floored.clients[name]) for name in plain.clients)


def test_iid_is_dirichlet_with_alpha_100() -> None:
    iid, dirichlet = deal(make("iid"), FASHION), deal(make("dirichlet", alpha=100), FASHION)
    assert all(np.array_equal(iid.clients[name], dirichlet.clients[name]) for name in iid.clients)


@pytest.mark.parametrize("clients", [1, 7, 37, 40])
def test_iid_leaves_nobody_empty(clients: int) -> None:
    counts = table(make("iid"), np.repeat(np.arange(10), 4), clients)
    assert counts.sum(axis=1).min() >= 1
    assert counts.sum() == 40


@pytest.mark.parametrize(
    ("seed", "size", "distances"), [(42, 5920, (0.511, 0.589)), (43, 6000, (0.508, 0.586))]
)
def test_pls_gives_the_authors_distances(seed: int, size: int, distances: tuple[float, float]) -> None:
    counts = table(make("pls"), FASHION, seed=seed)
    assert (counts > 0).sum(axis=1).tolist() == [2, 3, 4, 5, 9]
    assert counts.sum(axis=1).tolist() == [size] * 5
    # .5885 lies on the edge of rounding: the cut to equal size moves single samples.
    assert fidelity(counts) == pytest.approx(distances, abs=1e-3)


def test_pls_gives_the_authors_cifar_sizes_with_their_settings() -> None:
    split = make("pls", max_samples=2000, min_samples=100)
    sizes = [table(split, CIFAR, seed=seed).sum(axis=1).tolist() for seed in range(40, 50)]
    assert [4000] * 5 in sizes


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 10])
def test_pls_covers_every_class_on_request(clients: int) -> None:
    labels = np.repeat(np.arange(10), 30)
    plain = [table(make("pls"), labels, clients, seed) for seed in range(30)]
    assert any((counts.sum(axis=0) == 0).any() for counts in plain)
    for seed, former in enumerate(plain):
        counts = table(make("pls", cover=True), labels, clients, seed)
        assert (counts.sum(axis=0) > 0).all()
        assert counts.sum(axis=1).tolist() == former.sum(axis=1).tolist()
        if (former.sum(axis=0) > 0).all():
            assert counts.tolist() == former.tolist()


def test_pls_cover_gives_the_missing_class_an_even_part_of_the_broadest_client() -> None:
    plain, covered = (table(make("pls", cover=cover), FASHION, seed=62) for cover in (False, True))
    assert plain[:, 9].sum() == 0
    assert covered[:4].tolist() == plain[:4].tolist()
    assert covered[4] == pytest.approx(np.full(10, 600), abs=10)


@pytest.mark.parametrize("clients", [1, 2, 10, 20, 50])
def test_pls_defaults_suffice_for_any_number_of_clients(clients: int) -> None:
    labels = np.repeat(np.arange(10), 144)
    for seed in range(20):
        assert table(make("pls"), labels, clients, seed).sum(axis=1).min() > 0


@pytest.mark.parametrize(("classes", "labels"), [(10, 2), (47, 10), (100, 20), (1, 1), (8, 2)])
def test_fewest_labels_are_the_authors(classes: int, labels: int) -> None:
    assert fewest_labels(None, classes) == labels


def test_sls_gives_the_authors_table_and_distances() -> None:
    counts = table(make("sls", order="identity"), FASHION)
    assert counts.tolist() == [
        [1200] * 2 + [0] * 8,
        [1200] * 2 + [1500] * 2 + [0] * 6,
        [1200] * 2 + [1500] * 2 + [2000] * 2 + [0] * 4,
        [1200] * 2 + [1500] * 2 + [2000] * 2 + [3000] * 2 + [0] * 2,
        [1200] * 2 + [1500] * 2 + [2000] * 2 + [3000] * 2 + [6000] * 2,
    ]
    assert counts.sum(axis=1).tolist() == [2400, 5400, 9400, 15400, 27400]
    assert fidelity(table(make("sls"), CIFAR)) == (0.433, 0.5)


def test_sls_order_is_drawn_per_seed() -> None:
    holders = {tuple((table(make("sls"), FASHION, seed=seed)[0] > 0).tolist()) for seed in range(5)}
    assert len(holders) > 1


def test_sls_not_nested_is_the_later_published_draw() -> None:
    assert fidelity(table(make("sls", nested=False), FASHION)) == pytest.approx((0.417, 0.486), abs=1e-3)


@pytest.mark.parametrize(("classes", "clients"), [(47, 5), (10, 4), (10, 20), (8, 6), (10, 1)])
def test_sls_leaves_no_class_out(classes: int, clients: int) -> None:
    counts = table(make("sls"), np.repeat(np.arange(classes), 100), clients, classes=classes)
    assert counts.sum(axis=0).tolist() == [100] * classes
    assert (np.diff((counts > 0).sum(axis=1)) >= 0).all()


def test_maverick_gives_the_papers_split() -> None:
    dealing = deal(make("maverick"), FASHION)
    assert dealing.rare_classes == (7, 8, 9)
    counts = table(make("maverick"), FASHION)
    assert counts.tolist() == [[0] * 7 + [6000] * 3, *([[1500] * 7 + [0] * 3] * 4)]


def test_maverick_options() -> None:
    shared = table(make("maverick", mavericks=2, rare_classes=[0]), FASHION)
    assert shared[:, 0].tolist() == [3000, 3000, 0, 0, 0]
    plus = table(make("maverick", include_common=True), FASHION)
    assert plus[0].tolist() == [1200] * 7 + [6000] * 3
    leaky = table(make("maverick", leak=0.1), FASHION)
    assert leaky[:, 9].tolist() == [5400, 150, 150, 150, 150]
    equal = table(make("maverick", equalize=True), FASHION)
    assert equal.sum(axis=1).tolist() == [10500] * 5
    assert (equal[1:, 7:] == 0).all()


@pytest.mark.parametrize(("classes", "rare"), [(10, (7, 8, 9)), (8, (6, 7)), (2, (1,))])
def test_default_rare_classes(classes: int, rare: tuple[int, ...]) -> None:
    assert rare_or_last(None, classes) == rare


def test_free_rider_keeps_two_labels_that_all_hold() -> None:
    counts = table(make("free_rider"), FASHION)
    assert sorted(counts[0].tolist()) == [0] * 8 + [1200] * 2
    assert counts[1:].tolist() == [[1200] * 10] * 4


def test_honest_data_do_not_depend_on_the_kind_of_free_rider() -> None:
    kinds = ["few_labels", "repeated_samples", "random_labels", "copy_global", "noise", "replay_delta"]
    for name in ("free_rider", "frm"):
        dealings = [deal(make(name, kind=kind), FASHION) for kind in kinds]
        assert all(dealing.free_riders == ("client-0",) for dealing in dealings)
        for client in ("client-1", "client-4"):
            assert all(np.array_equal(d.clients[client], dealings[0].clients[client]) for d in dealings)
        behaviours = [dict(dealing.behaviours) for dealing in dealings]
        assert behaviours == [
            {},
            {},
            {},
            {"client-0": {"name": "copy_global", "strength": 0.0}},
            {"client-0": {"name": "copy_global", "strength": 1.0}},
            {"client-0": {"name": "replay_delta"}},
        ]


def test_free_rider_repeats_a_few_samples_up_to_the_mean_size() -> None:
    rows = deal(make("free_rider", kind="repeated_samples", repeats_of=10), FASHION).clients["client-0"]
    assert len(rows) == 12000
    assert len(set(rows.tolist())) <= 10


def test_free_rider_with_random_labels_keeps_its_samples() -> None:
    dealing = deal(make("free_rider", kind="random_labels"), FASHION)
    lies = dealing.relabelled["client-0"]
    assert lies.dtype == np.int64
    assert len(lies) == len(dealing.clients["client-0"]) == 12000
    assert np.mean(lies == FASHION[dealing.clients["client-0"]]) == pytest.approx(0.1, abs=0.02)


def test_frm_has_a_free_rider_first_and_a_maverick_last() -> None:
    dealing = deal(make("frm"), FASHION)
    assert (dealing.free_riders, dealing.rare_classes) == (("client-0",), (7, 8, 9))
    counts = table(make("frm"), FASHION)
    assert sorted(counts[0, :7].tolist()) == [0] * 5 + [1500] * 2
    assert counts[1:].tolist() == [*([[1500] * 7 + [0] * 3] * 3), [0] * 7 + [6000] * 3]
    assert counts[0, 7:].sum() == 0


def test_natural_follows_the_owners_in_natural_order() -> None:
    labels = np.array([0, 1, 0, 1, 1])
    owners = ["site-10", "site-2", "site-10", "site-1", "site-2"]
    dealing = make("natural").deal(labels, 2, 99, np.random.RandomState(0), owners)
    assert {name: rows.tolist() for name, rows in dealing.clients.items()} == {
        "site-1": [3],
        "site-2": [1, 4],
        "site-10": [0, 2],
    }
    assert list(dealing.clients) == ["site-1", "site-2", "site-10"]


def test_natural_needs_owners() -> None:
    with pytest.raises(CelmError, match="does not say who owns"):
        deal(make("natural"), FASHION)
    with pytest.raises(CelmError, match="2 owners for 3"):
        make("natural").deal(np.array([0, 1, 0]), 2, 2, np.random.RandomState(0), ["a", "b"])


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
def test_what_cannot_be_dealt_names_the_setting(
    name: str, options: dict[str, Any], clients: int, setting: str
) -> None:
    labels = np.repeat(np.arange(10), 10)
    with pytest.raises(CelmError, match=rf"split\.{setting}\b") as error:
        deal(make(name, **options), labels, clients)
    assert "\n" not in str(error.value)


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(CelmError, match="did you mean 'alpha'"):
        make("dirichlet", alhpa=0.1)


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_split_says_in_one_line_what_it_is(kind: type[Split]) -> None:
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
ALL_DEALT = [("iid", {}), ("dirichlet", {}), ("sls", {}), ("maverick", {}), ("maverick", {"leak": 0.3})]


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
    dealing, again = (deal(make(name, **options), labels, clients, seed, classes) for _ in range(2))
    assert list(dealing.clients) == [f"client-{i}" for i in range(clients)]
    rows = np.concatenate(list(dealing.clients.values()))
    assert all(part.dtype == np.int64 for part in dealing.clients.values())
    assert len(set(rows.tolist())) == len(rows)
    assert 0 <= rows.min() <= rows.max() < len(labels)
    for client, part in dealing.clients.items():
        assert np.array_equal(part, again.clients[client])
    counts = np.array(list(dealing.counts(labels, classes).values()))
    assert counts.shape == (clients, classes)
    if name == "pls" or options.get("equalize"):
        assert len(set(counts.sum(axis=1).tolist())) == 1
    if options.get("cover"):
        assert (counts.sum(axis=0) > 0).all()
    if name in ("maverick", "frm") and "leak" not in options:
        maverick = 0 if name == "maverick" else clients - 1
        rare = list(dealing.rare_classes)
        assert np.delete(counts, maverick, axis=0)[:, rare].sum() == 0
        assert counts[maverick].sum() == counts[maverick, rare].sum() > 0


@pytest.mark.parametrize(("name", "options"), ALL_DEALT)
@settings(max_examples=25, deadline=None)
@given(federation=federations())
def test_every_sample_is_dealt(
    name: str, options: dict[str, Any], federation: tuple[NDArray[np.int64], int, int, int]
) -> None:
    labels, classes, clients, seed = federation
    dealing = deal(make(name, **options), labels, clients, seed, classes)
    assert sorted(np.concatenate(list(dealing.clients.values())).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("name", ["free_rider", "frm"])
@settings(max_examples=25, deadline=None)
@given(federation=federations())
def test_every_honest_client_holds_the_free_riders_labels(
    name: str, federation: tuple[NDArray[np.int64], int, int, int]
) -> None:
    labels, classes, clients, seed = federation
    counts = table(make(name), labels, clients, seed, classes)
    held = np.flatnonzero(counts[0])
    assert len(held) == 2
    honest = counts[1:-1] if name == "frm" else counts[1:]
    assert (honest[:, held] > 0).all()


def test_global_randomness_is_neither_used_nor_changed() -> None:
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    for name in set(KINDS) - {"natural"}:
        deal(make(name), np.repeat(np.arange(10), 50))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
