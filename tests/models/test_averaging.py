"""The weighted mean of state dicts, against numpy in float64 and by its properties."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from celm.models import averaging
from celm.models.averaging import weighted_mean


def states_of(seed: int, clients: int, dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [
        {
            "weight": torch.randn(3, 4, generator=draw).to(dtype),
            "steps": torch.randint(0, 100, (), generator=draw),
            "mask": torch.randint(0, 2, (3,), generator=draw).bool(),
            "bias": torch.randn(5, generator=draw).to(dtype),
        }
        for _ in range(clients)
    ]


WEIGHTS = st.lists(st.floats(0, 1e6) | st.just(0.0), min_size=1, max_size=6).filter(lambda ws: sum(ws) > 1e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 1e-2)],
)
def test_mean_is_numpys_in_float64(dtype: torch.dtype, tolerance: float) -> None:
    states, weights = states_of(0, 5, dtype), [3.0, 0.5, 0.0, 1.25, 2.0]
    merged = weighted_mean(states, weights)
    assert list(merged) == ["weight", "steps", "mask", "bias"]
    for name in ("weight", "bias"):
        stacked = np.stack([state[name].double().numpy() for state in states])
        expected = np.average(stacked, axis=0, weights=weights)
        assert merged[name].dtype is dtype
        np.testing.assert_allclose(merged[name].double().numpy(), expected, rtol=tolerance, atol=tolerance)


def test_half_types_do_not_lose_small_clients() -> None:
    """Summed in float16, 2000 clients of 1/2000 stop adding up before the end."""
    states = [{"a": torch.ones(1, dtype=torch.float16)}] * 2000
    assert float(weighted_mean(states, [1.0] * 2000)["a"]) == 1.0


def test_integers_and_booleans_come_from_the_heaviest_first_of_equals() -> None:
    states = states_of(1, 4)
    merged = weighted_mean(states, [0.1, 0.4, 0.4, 0.1])
    assert torch.equal(merged["steps"], states[1]["steps"])
    assert torch.equal(merged["mask"], states[1]["mask"])


@given(st.integers(0, 99), WEIGHTS)
def test_mean_lies_between_the_least_and_the_greatest(seed: int, weights: list[float]) -> None:
    states = states_of(seed, len(weights))
    merged = weighted_mean(states, weights)
    for name in ("weight", "bias"):
        stacked = torch.stack([state[name] for state in states])
        assert (merged[name] >= stacked.amin(0) - 1e-5).all()
        assert (merged[name] <= stacked.amax(0) + 1e-5).all()


@given(st.integers(0, 99), WEIGHTS)
def test_mean_of_equal_states_is_that_state(seed: int, weights: list[float]) -> None:
    state = states_of(seed, 1)[0]
    merged = weighted_mean([state] * len(weights), weights)
    for name, tensor in state.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-6, atol=1e-6)


@given(st.integers(0, 99), WEIGHTS, st.randoms(use_true_random=False))
def test_order_of_clients_matters_only_by_rounding(seed: int, weights: list[float], random: Any) -> None:
    states = states_of(seed, len(weights))
    order = list(range(len(weights)))
    random.shuffle(order)
    one = weighted_mean(states, weights)
    other = weighted_mean([states[i] for i in order], [weights[i] for i in order])
    for name in ("weight", "bias"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-5)


@given(st.integers(0, 99), st.floats(1e-3, 1e3))
def test_scale_of_the_weights_does_not_matter(seed: int, scale: float) -> None:
    states, weights = states_of(seed, 3), [0.5, 0.25, 0.25]
    one, other = weighted_mean(states, weights), weighted_mean(states, [scale * weight for weight in weights])
    torch.testing.assert_close(one["weight"], other["weight"], rtol=1e-6, atol=1e-6)


def test_all_the_weight_on_one_gives_exactly_that_one_and_never_reads_the_others() -> None:
    states = states_of(2, 3)
    states[1]["weight"].fill_(float("nan"))
    merged = weighted_mean(states, [1, 0, 0])
    for name, tensor in states[0].items():
        assert torch.equal(merged[name], tensor)
        assert merged[name].data_ptr() != tensor.data_ptr()
    assert torch.equal(weighted_mean(states, [0, 0, 1])["steps"], states[2]["steps"])


def test_states_are_taken_once_each_and_left_alone() -> None:
    taken: list[int] = []
    states = states_of(3, 3)
    copies = [{name: tensor.clone() for name, tensor in state.items()} for state in states]

    class Lazy(list[dict[str, Tensor]]):
        def __getitem__(self, i: Any) -> Any:
            taken.append(i)
            return super().__getitem__(i)

        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            raise AssertionError("states must be fetched one at a time")

    weighted_mean(Lazy(states), [1, 2, 3])
    assert taken == [0, 1, 2]
    for state, copy in zip(states, copies, strict=True):
        assert all(torch.equal(state[name], copy[name]) for name in copy)


@pytest.mark.parametrize(
    "size", [1, 31, averaging.BLOCK_VALUES - 1, averaging.BLOCK_VALUES, 3 * averaging.BLOCK_VALUES + 5]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_blocks_change_no_bit_of_the_running_sum(size: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(size)
    tensors = [torch.randn(size, generator=draw).to(dtype) for _ in range(5)]
    weights = [0.5, 0.125, 0.25, 0.0625, 0.0625]
    kind = averaging.accumulator_dtype(dtype)
    expected = tensors[0].to(kind) * weights[0]
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        expected.add_(tensor.to(kind), alpha=weight)
    assert torch.equal(weighted_mean([{"a": tensor} for tensor in tensors], weights)["a"], expected.to(dtype))


def test_memory_order_is_kept() -> None:
    states = [{"a": torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)} for _ in range(3)]
    merged = weighted_mean(states, [1, 1, 2])["a"]
    assert merged.stride() == states[0]["a"].stride()
    expected = (states[0]["a"] + states[1]["a"] + 2 * states[2]["a"]) / 4
    torch.testing.assert_close(merged, expected)


def test_files_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, weights = states_of(5, 7), [1.0, 2.0, 0.0, 4.0, 1.0, 1.0, 3.0]
    paths = [tmp_path / f"{i}.safetensors" for i in range(7)]
    for state, path in zip(states, paths, strict=True):
        save_file(state, path)
    one = sum(tensor.nbytes for tensor in states[0].values())
    monkeypatch.setattr(averaging, "READ_AHEAD_BYTES", 2 * one + 1)
    files = averaging.LazyStateDicts(paths)
    assert [len(part) for part in averaging.iter_batches(files, [0, 1, 3, 4, 5, 6])] == [2, 2, 2]
    assert [len(part) for part in averaging.iter_batches(files[:5], [0, 1, 3])] == [2, 1]
    paths[2].unlink()  # of weight zero: never opened
    expected = weighted_mean(states, weights)
    for name, tensor in weighted_mean(files, weights).items():
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize(
    "weights", [[], [1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]]
)
def test_invalid_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError):
        weighted_mean(states_of(0, 2), weights)


def test_huge_weights_do_not_overflow() -> None:
    merged = weighted_mean([{"a": torch.zeros(1)}, {"a": torch.ones(1)}], [1e308, 1e308])
    assert float(merged["a"]) == 0.5


@pytest.mark.parametrize("count", [2, 30])
def test_no_tensor_is_larger_than_one_model(count: int, kernels: Any) -> None:
    states = [{"a": torch.randn(1000), "b": torch.randn(10, 30)} for _ in range(count)]
    with kernels() as counted:
        weighted_mean(states, [1.0] * count)
    assert counted.largest == 1000
    assert counted.calls["stack"] == counted.calls["cat"] == 0
