"""Robust aggregation against numpy, scipy and definitions by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean
from torch import Tensor

from celm.base.errors import CelmError
from celm.models.averaging import weighted_mean
from celm.models.state_dict import StateDict
from celm.rules.messages import ClientUpdate, RoundData, ServerMessage
from celm.rules.robust import aggregators, filters
from celm.rules.robust.aggregator import RobustAggregator
from celm.rules.robust.clip_norm import ClipNorm
from celm.rules.robust.krum import Krum
from celm.rules.robust.median import Median
from celm.rules.robust.trimmed_mean import TrimmedMean
from support.rule_rounds import a_round


def states_of(clients: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[StateDict]:
    draw = torch.Generator().manual_seed(seed)
    return [
        {
            "weight": torch.randn(3, 4, generator=draw).to(dtype),
            "steps": torch.tensor(i),
            "scale": torch.randn((), generator=draw).to(dtype),
            "empty": torch.zeros(0, dtype=dtype),
        }
        for i in range(clients)
    ]


def round_of(steps: Mapping[str, Sequence[float]], start: Sequence[float] | None = None) -> RoundData:
    """Build a round of clients that moved by `steps` from `start` and counted 7 batches."""
    origin = torch.zeros(len(next(iter(steps.values())))) if start is None else torch.tensor(start)
    delivered = {"w": origin, "count": torch.tensor(0)}
    models: dict[str, StateDict] = {
        name: {"w": origin + torch.tensor(list(step)), "count": torch.tensor(7)}
        for name, step in steps.items()
    }
    return a_round(delivered, models)


def stacked(states: Sequence[StateDict], name: str) -> np.ndarray:
    return np.stack([state[name].double().numpy() for state in states])


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 5, 7, 10])
def test_equal_weights_give_numpys_median(clients: int) -> None:
    states = states_of(clients)
    merged = Median()(states, [1 / clients] * clients)
    for name in ("weight", "scale"):
        np.testing.assert_allclose(merged[name].double(), np.median(stacked(states, name), axis=0), rtol=1e-7)


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 8, 10, 11])
@pytest.mark.parametrize("trim", [0.0, 0.1, 0.2, 0.29, 0.4, 0.49])
def test_equal_weights_give_scipys_trimmed_mean(clients: int, trim: float) -> None:
    states = states_of(clients)
    merged = TrimmedMean(trim)(states, [2.0] * clients)
    for name in ("weight", "scale"):
        expected = trim_mean(stacked(states, name), trim, axis=0)
        np.testing.assert_allclose(merged[name].double(), expected, rtol=1e-6, atol=1e-7)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), min_size=1, max_size=6).filter(
        lambda pairs: any(weight for _, weight in pairs)
    )
)
def test_a_weight_is_as_many_clients_of_weight_one(pairs: list[tuple[int, int]]) -> None:
    """For the median of whole weights: the same as numpy's with every value repeated."""
    states = [{"x": torch.tensor([float(value)])} for value, _ in pairs]
    repeated = [value for value, weight in pairs for _ in range(weight)]
    weights = [weight / len(repeated) for _, weight in pairs]
    assert float(Median()(states, weights)["x"]) == np.median(repeated)


def test_trimmed_mean_by_hand_with_weights() -> None:
    """Of 5 values, the smallest and the largest of each coordinate are dropped; the rest keep their weights."""
    pairs = [[1.0, 9.0], [2.0, 8.0], [3.0, 7.0], [4.0, 100.0], [100.0, -100.0]]
    states = [{"x": torch.tensor(pair)} for pair in pairs]
    merged = TrimmedMean(0.2)(states, [0.1, 0.2, 0.3, 0.3, 0.1])
    first = (0.2 * 2 + 0.3 * 3 + 0.3 * 4) / 0.8
    second = (0.1 * 9 + 0.2 * 8 + 0.3 * 7) / 0.6
    assert merged["x"].tolist() == pytest.approx([first, second])


def test_a_trim_close_to_a_half_leaves_the_middle() -> None:
    states = [{"x": torch.tensor([float(value)])} for value in range(6)]
    assert TrimmedMean(0.49999999999999994)(states, [1.0] * 6)["x"].tolist() == [2.5]


@pytest.mark.parametrize("combine", [Median(), TrimmedMean(0.2)], ids=["median", "trimmed_mean"])
class TestCombines:
    def test_less_than_their_share_of_attackers_cannot_leave_the_range_of_the_others(
        self, combine: RobustAggregator
    ) -> None:
        states = states_of(5)
        states[2] = {**states[2], "weight": torch.full((3, 4), 1e30)}
        merged = combine(states, [0.2] * 5)["weight"].double().numpy()
        honest = stacked([state for i, state in enumerate(states) if i != 2], "weight")
        assert (merged >= honest.min(axis=0) - 1e-6).all()
        assert (merged <= honest.max(axis=0) + 1e-6).all()

    def test_zero_weight_is_as_absent(self, combine: RobustAggregator) -> None:
        states = states_of(6)
        some, all_of_them = combine(states[:5], [1.0, 2, 1, 3, 1]), combine(states, [1.0, 2, 1, 3, 1, 0])
        assert all(torch.equal(some[name], all_of_them[name]) for name in some)

    def test_integers_come_from_the_heaviest_first_of_equals(self, combine: RobustAggregator) -> None:
        assert combine(states_of(4), [0.1, 0.4, 0.4, 0.1])["steps"] == 1

    def test_permuting_clients_changes_nothing(self, combine: RobustAggregator) -> None:
        states, weights = states_of(5), [0.1, 0.15, 0.2, 0.25, 0.3]
        there, back = combine(states, weights), combine(states[::-1], weights[::-1])
        for name in there:
            torch.testing.assert_close(there[name], back[name])

    def test_shapes_and_types_stay(self, combine: RobustAggregator) -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64):
            states = states_of(4, dtype=dtype)
            merged = combine(states, [0.25] * 4)
            assert list(merged) == list(states[0])
            for name, tensor in states[0].items():
                assert (merged[name].shape, merged[name].dtype) == (tensor.shape, tensor.dtype)

    def test_equal_models_come_out_as_they_are(self, combine: RobustAggregator) -> None:
        state = states_of(1)[0]
        merged = combine([state] * 4, [0.4, 0.3, 0.2, 0.1])
        for name, tensor in state.items():
            torch.testing.assert_close(merged[name], tensor)

    def test_great_values_do_not_overflow(self, combine: RobustAggregator) -> None:
        states: list[dict[str, Tensor]] = [{"x": torch.tensor([3e38])}] * 4
        assert float(combine(states, [0.25] * 4)["x"]) == pytest.approx(3e38)

    @pytest.mark.parametrize("weights", [[], [1.0], [0.0, 0.0], [-1.0, 2.0], [float("nan"), 1.0]])
    def test_weights_that_mean_nothing_are_refused(
        self, combine: RobustAggregator, weights: list[float]
    ) -> None:
        with pytest.raises(ValueError):
            combine(states_of(2), weights)


def test_without_trim_the_trimmed_mean_is_the_mean() -> None:
    states, weights = states_of(4), [0.1, 0.2, 0.3, 0.4]
    torch.testing.assert_close(TrimmedMean(0)(states, weights), weighted_mean(states, weights))


def test_clip_shortens_long_updates_only_and_keeps_their_direction() -> None:
    round = round_of({"a": [3.0, 4.0], "b": [0.3, 0.4], "c": [0.0, 0.0]}, start=[1.0, -1.0])
    filtered = ClipNorm(norm=1.0).apply(round)
    assert not filtered.excluded
    models = {name: update.model for name, update in filtered.round.updates.items()}
    torch.testing.assert_close(models["a"]["w"], torch.tensor([1.6, -0.2]))
    assert models["a"]["count"] == 7
    assert models["b"] is round.updates["b"].model
    assert models["c"] is round.updates["c"].model


def test_clip_is_to_the_median_norm_of_nonzero_updates() -> None:
    round = round_of({"a": [1.0], "b": [-3.0], "c": [5.0], "d": [100.0], "still": [0.0], "idle": [0.0]})
    clipped = ClipNorm().apply(round).round
    expected = {"a": 1.0, "b": -3.0, "c": 4.0, "d": 4.0, "still": 0.0, "idle": 0.0}
    assert {name: float(update.model["w"]) for name, update in clipped.updates.items()} == expected


def test_clip_leaves_a_round_of_zero_updates_unchanged() -> None:
    round = round_of({"a": [0.0], "b": [0.0]})
    assert ClipNorm().apply(round).round == round


def test_clip_is_relative_to_the_received_model() -> None:
    round = round_of({"a": [1.0], "b": [1.0]})
    own = ServerMessage({"w": torch.tensor([-9.0]), "count": torch.tensor(0)})
    round = replace(round, messages={**round.messages, "b": own})
    clipped = ClipNorm(norm=2.0).apply(round).round
    assert float(clipped.updates["b"].model["w"]) == pytest.approx(-7.0)


def test_clip_survives_differences_beyond_float32() -> None:
    round = round_of({"a": [1.0, 0.0], "b": [2.0, 0.0]})
    ends = {"w": torch.tensor([3e38, 3e38]), "count": torch.tensor(0)}
    far = ServerMessage({"w": -ends["w"], "count": torch.tensor(0)})
    round = replace(
        round,
        messages={**round.messages, "b": far},
        updates={**round.updates, "b": ClientUpdate(ends, 1, 1)},
    )
    assert torch.equal(ClipNorm(1.0).apply(round).round.updates["b"].model["w"], far.model["w"])


def test_clip_excludes_an_update_without_a_finite_norm() -> None:
    round = round_of({"a": [1.0], "b": [2.0]})
    huge = ClientUpdate({"w": torch.tensor([1e300], dtype=torch.float64), "count": torch.tensor(0)}, 1, 1)
    filtered = ClipNorm().apply(replace(round, updates={**round.updates, "b": huge}))
    assert filtered.round.clients == ["a"]
    assert filtered.round.selected == ["a", "b"]
    assert list(filtered.excluded) == ["b"]
    assert "not finite" in filtered.excluded["b"]


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=5))
def test_clipped_updates_are_within_the_bound(steps: list[list[float]]) -> None:
    clipped = ClipNorm(norm=0.5).apply(round_of({f"c{i}": step for i, step in enumerate(steps)})).round
    assert all(float(update.model["w"].norm()) <= 0.5 * (1 + 1e-5) for update in clipped.updates.values())


def test_krum_by_hand() -> None:
    """n = 6, f = 1, so 3 neighbours. On a line at 0, 1, 2, 4, 7, 50 the sums of the 3 least squares are
    1+4+16, 1+1+9, 1+4+4, 4+9+9, 9+25+36, 43²+46²+48²."""
    places = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 4.0, "e": 7.0, "f": 50.0}
    round = round_of({name: [place] for name, place in places.items()})
    filtered = Krum(malicious=1).apply(round)
    assert list(filtered.round.updates) == list(filtered.round.messages) == ["c"]
    scores = {"a": "21", "b": "11", "d": "22", "e": "70", "f": "6269"}
    assert {name: reason.rpartition(" ")[2] for name, reason in filtered.excluded.items()} == scores
    assert list(Krum(malicious=1, selected=4).apply(round).round.updates) == ["a", "b", "c", "d"]


@settings(max_examples=50)
@given(st.integers(4, 6), st.integers(0, 2), st.integers(0, 1000))
def test_krum_is_its_definition(n: int, malicious: int, seed: int) -> None:
    """The least sum over any n - f - 2 others, by trying all of them."""
    points = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    neighbours = max(1, n - malicious - 2)

    def score(i: int) -> float:
        squares = [float(((points[i].astype(float) - points[j]) ** 2).sum()) for j in range(n) if j != i]
        return min(sum(some) for some in combinations(squares, neighbours))

    kept = Krum(malicious, selected=2).apply(round_of({f"c{i}": points[i].tolist() for i in range(n)})).round
    assert list(kept.updates) == [f"c{i}" for i in sorted(sorted(range(n), key=score)[:2])]


def test_krum_is_relative_to_the_received_model() -> None:
    """b moved as a and c did, from another model; d did not."""
    round = round_of({"a": [1.0], "b": [11.0], "c": [1.0], "d": [10.5]})
    elsewhere = ServerMessage({"w": torch.tensor([10.0]), "count": torch.tensor(0)})
    round = replace(round, messages={**round.messages, "b": elsewhere})
    assert list(Krum(selected=3).apply(round).round.updates) == ["a", "b", "c"]


@pytest.mark.parametrize(("clients", "kept"), [(1, ["c0"]), (2, ["c0"]), (3, ["c0"])])
def test_krum_works_with_too_few_clients(clients: int, kept: list[str]) -> None:
    round = round_of({f"c{i}": [float(i)] for i in range(clients)})
    filtered = Krum(malicious=3).apply(round)
    assert list(filtered.round.updates) == kept
    assert set(filtered.excluded) == set(round.clients) - set(kept)


def test_krum_keeps_the_message_of_a_client_that_sent_nothing() -> None:
    """Such a client was asked and did not answer, which counts against its weight; an unselected one answered."""
    round = round_of({"a": [0.0], "b": [0.1], "c": [0.2], "d": [9.0]})
    round = replace(round, messages={**round.messages, "silent": round.messages["a"]})
    filtered = Krum(malicious=1, selected=3).apply(round)
    assert filtered.round.selected == ["a", "b", "c", "silent"]


def test_krum_keeps_all_if_as_many_are_selected() -> None:
    round = round_of({f"c{i}": [float(i)] for i in range(3)})
    filtered = Krum(selected=9).apply(round)
    assert list(filtered.round.updates) == ["c0", "c1", "c2"]
    assert not filtered.excluded


def test_settings_are_checked_and_explained() -> None:
    assert aggregators.build("trimmed_mean", {"trim": 0.1}) == TrimmedMean(0.1)
    assert filters.build("krum", {"malicious": 2, "selected": 3}) == Krum(2, 3)
    with pytest.raises(CelmError, match="trim"):
        aggregators.build("trimmed_mean", {"trim": 0.5})
    for registry, name in (
        (filters, "clip_norm"),
        (filters, "krum"),
        (aggregators, "median"),
        (aggregators, "trimmed_mean"),
    ):
        assert registry.summary(name)
        assert all(setting["about"] for setting in registry.settings(name))
