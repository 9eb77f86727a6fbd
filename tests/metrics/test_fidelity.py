"""Distances between joint client x class distributions, against scipy and the paper's own columns."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from celm.data.split import Split
from celm.data.splits.dirichlet import Dirichlet
from celm.data.splits.pls import PureLabelSkew
from celm.data.splits.sls import StepLabelSkew
from celm.metrics.fidelity import (
    ClassTable,
    Fidelity,
    fidelity,
    fidelity_to_uniform,
)

FASHION = np.repeat(np.arange(10), 6000)
CIFAR = np.repeat(np.arange(10), 5000)

# Train fold of Fed-ISIC2019, centre by class, from FLamby's train_test_split file.
FEDISIC = {
    "centre-0": [2279, 3363, 2245, 606, 923, 97, 87, 330],
    "centre-1": [20, 2977, 2, 0, 96, 23, 45, 0],
    "centre-2": [533, 1470, 174, 20, 379, 40, 64, 11],
    "centre-3": [276, 649, 223, 86, 406, 20, 3, 144],
    "centre-4": [166, 349, 0, 0, 140, 0, 0, 0],
    "centre-5": [58, 276, 5, 0, 6, 4, 2, 0],
}

DISTANCES = ("jensen_shannon", "hellinger", "total_variation", "emd", "clients", "classes")
# Jensen-Shannon is the root of a difference of order 1e-16 where two distributions are alike.
ROUNDING = 1e-7


def tables(number: int) -> st.SearchStrategy[list[ClassTable]]:
    """Several tables of one shape, each with some mass."""
    cells = st.one_of(st.integers(0, 50).map(float), st.floats(0, 1e300, allow_subnormal=False), st.just(0.0))

    def of_shape(shape: tuple[int, int]) -> st.SearchStrategy[list[ClassTable]]:
        row = st.lists(cells, min_size=shape[1], max_size=shape[1])
        rows = st.lists(row, min_size=shape[0], max_size=shape[0]).filter(lambda rows: bool(np.any(rows)))
        named = rows.map(lambda rows: {f"client-{i}": row for i, row in enumerate(rows)})
        return st.lists(named, min_size=number, max_size=number)

    return st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(of_shape)


def joint_distribution(table: ClassTable) -> Any:
    cells = np.ravel(list(table.values()))
    return cells / cells.max() / (cells / cells.max()).sum()


def measured(true: ClassTable, estimated: ClassTable) -> Fidelity:
    result = fidelity(true, estimated)
    assert result is not None
    return result


def uniform_columns(held: ClassTable) -> tuple[float, float]:
    result = fidelity_to_uniform(held)
    assert result is not None
    return round(result.jensen_shannon, 3), round(result.hellinger, 3)


@pytest.mark.parametrize(
    ("split", "labels", "seed", "paper"),
    [
        pytest.param(Dirichlet(0.05), FASHION, 42, (0.613, 0.693), id="fashion_mnist-dirichlet-.05"),
        pytest.param(Dirichlet(0.01), CIFAR, 42, (0.646, 0.735), id="cifar10-dirichlet-.01"),
        pytest.param(PureLabelSkew(), FASHION, 43, (0.508, 0.586), id="fashion_mnist-pls"),
        pytest.param(StepLabelSkew(), CIFAR, 42, (0.433, 0.500), id="cifar10-sls"),
    ],
)
def test_uniform_columns_are_the_papers(
    split: Split, labels: Any, seed: int, paper: tuple[float, float]
) -> None:
    held = split.partition(labels, 10, 5, np.random.RandomState(seed)).counts(labels, 10)
    assert uniform_columns(held) == paper


def test_uniform_columns_of_fedisic_are_the_papers() -> None:
    assert uniform_columns(FEDISIC) == (0.535, 0.583)


@given(tables(2))
def test_distances_are_scipys(drawn: list[ClassTable]) -> None:
    p, q = map(joint_distribution, drawn)
    result = measured(*drawn)
    with warnings.catch_warnings():
        # NaN where two distributions are alike but for the last bit: why we do not call it.
        warnings.simplefilter("ignore", RuntimeWarning)
        oracle = np.nan_to_num(jensenshannon(p, q))
    assert result.jensen_shannon == pytest.approx(oracle, abs=ROUNDING)
    assert result.divergence == pytest.approx(result.jensen_shannon**2)
    assert result.hellinger == pytest.approx(math.sqrt(max(0.0, 1 - np.sqrt(p * q).sum())), abs=ROUNDING)
    assert result.total_variation == pytest.approx(max(0.0, np.maximum(p - q, 0).sum()), abs=1e-12)


def test_distances_are_finite_if_scipys_are_not() -> None:
    p = np.array([0.1, 0.2, 0.7])
    for scale in np.linspace(1, 9, 200):
        result = measured({"a": p.tolist()}, {"a": (scale * p).tolist()})
        assert result.jensen_shannon < ROUNDING
        json.dumps(asdict(result), allow_nan=False)


@given(tables(3))
def test_distances_are_metrics_between_0_and_1(drawn: list[ClassTable]) -> None:
    a, b, c = drawn
    ab, ba, bc, ac = (asdict(measured(*pair)) for pair in ((a, b), (b, a), (b, c), (a, c)))
    itself = asdict(measured(a, a))
    for name in DISTANCES:
        assert 0 <= ab[name] <= 1 + 1e-12
        assert ab[name] == pytest.approx(ba[name], abs=ROUNDING)
        assert ac[name] <= ab[name] + bc[name] + 2 * ROUNDING
        assert itself[name] <= ROUNDING
    assert ab["divergence"] <= math.log(2) + 1e-12


@given(tables(2))
def test_known_inequalities_hold(drawn: list[ClassTable]) -> None:
    result = measured(*drawn)
    assert result.hellinger**2 <= result.total_variation + 1e-12
    assert result.total_variation <= math.sqrt(2) * result.hellinger + 1e-12
    assert result.divergence <= math.log(2) * result.total_variation + 1e-12
    # Summing up cells cannot part two distributions.
    assert max(result.clients, result.classes) <= result.jensen_shannon + ROUNDING


@given(tables(2), st.sampled_from([2.0**-20, 0.5, 4.0]))
def test_the_scale_of_counts_does_not_matter(drawn: list[ClassTable], scale: float) -> None:
    true, estimated = drawn
    scaled = {name: [scale * value for value in row] for name, row in estimated.items()}
    assert asdict(measured(true, scaled)) == pytest.approx(asdict(measured(true, estimated)), abs=ROUNDING)


@given(tables(2), st.randoms())
def test_the_order_of_clients_does_not_matter(drawn: list[ClassTable], random: Any) -> None:
    true, estimated = drawn
    names = list(true)
    random.shuffle(names)
    assert measured({name: true[name] for name in names}, estimated) == measured(true, estimated)
    renamed = dict(zip(true, names, strict=True))
    moved = measured(*({renamed[name]: row for name, row in table.items()} for table in drawn))
    assert asdict(moved) == pytest.approx(asdict(measured(true, estimated)), abs=ROUNDING)


@given(tables(1))
def test_uniform_is_a_table_of_ones(drawn: list[ClassTable]) -> None:
    (true,) = drawn
    assert fidelity_to_uniform(true) == fidelity(true, {name: [1.0] * len(row) for name, row in true.items()})


def test_disjoint_distributions_have_the_largest_distances() -> None:
    result = measured({"a": [1, 0], "b": [0, 0]}, {"a": [0, 0], "b": [0, 5]})
    assert result.jensen_shannon == pytest.approx(math.sqrt(math.log(2)))
    assert (result.hellinger, result.total_variation, result.emd) == (1.0, 1.0, 1.0)


def test_a_tiny_cell_is_not_infinitely_far() -> None:
    result = measured({"a": [1e300, 5e-24]}, {"a": [1e300, 0]})
    assert result.jensen_shannon == pytest.approx(0, abs=ROUNDING)


def test_emd_by_hand() -> None:
    true = {"a": [1, 0, 0], "b": [2, 0, 2], "c": [0, 9, 0]}
    estimated = {"a": [0, 0, 7], "b": [0, 1, 0], "c": [0, 1, 0]}
    # From end to end; half of it one step up and half one step down; nothing: (1 + 1/2 + 0) / 3.
    assert measured(true, estimated).emd == pytest.approx(0.5)


@given(tables(2))
def test_emd_is_the_mean_of_scipys_over_clients(drawn: list[ClassTable]) -> None:
    true, estimated = drawn
    distances: list[float] = []
    for name, row in true.items():
        left, right = np.array(row), np.array(estimated[name])
        if left.any() and right.any():
            left, right, index = left / left.max(), right / right.max(), range(len(row))
            distances.append(wasserstein_distance(index, index, left, right) / max(1, len(row) - 1))
        else:
            distances.append(float(left.any() != right.any()))
    assert measured(true, estimated).emd == pytest.approx(np.mean(distances), abs=1e-12)


def test_emd_of_a_client_without_mass() -> None:
    assert measured({"a": [1, 1], "b": [0, 0]}, {"a": [1, 1], "b": [1, 1]}).emd == 0.5
    assert measured({"a": [1, 1], "b": [0, 0]}, {"a": [1, 1], "b": [0, 0]}).emd == 0.0


def test_a_client_without_an_estimate_has_no_mass_there() -> None:
    true = {"client-0": [3, 1], "client-1": [0, 4]}
    assert fidelity(true, {"client-1": [0, 4]}) == fidelity(true, {"client-0": [0, 0], "client-1": [0, 4]})


def test_a_table_without_mass_has_no_distance() -> None:
    some, none = {"a": [1, 2]}, {"a": [0, 0]}
    assert fidelity(some, none) is None
    assert fidelity(none, some) is None
    assert fidelity(some, {}) is None
    assert fidelity_to_uniform(none) is None
    assert fidelity_to_uniform({}) is None


@pytest.mark.parametrize(
    ("true", "estimated", "message"),
    [
        ({"a": [1, 2]}, {"b": [1, 2]}, "client 'b'"),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "2 classes .* 3"),
        ({"a": [1, 2], "b": [1]}, {"a": [1, 2]}, "different numbers"),
        ({"a": [1, -2]}, {"a": [1, 2]}, "client 'a' are negative"),
        ({"a": [1, 2]}, {"a": [1, math.nan]}, "not finite"),
    ],
)
def test_tables_that_do_not_fit_are_refused(true: ClassTable, estimated: ClassTable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fidelity(true, estimated)
