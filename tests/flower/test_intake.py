"""Whatever a client sends: it counts, or it is excluded with a reason, and the round goes on."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from celm.base.errors import CelmError
from celm.flower import ContributionStrategy
from celm.flower.arrays import Layout, Refusal
from celm.models.state import state_of
from flower.small_grid import Client, SmallGrid, arrays_of, initial, learner, network, reply


def strategy(rule: str = "fedavg", **settings: Any) -> ContributionStrategy:
    usual: dict[str, Any] = {"fraction_evaluate": 0.0, "retry_wait": 0.0, "probe": {"steps": 2}}
    return ContributionStrategy(rule, network(), (6,), 3, **{**usual, **settings})


def sending(change: Any, **metrics: Any) -> Client:
    """A client that returns what `change` makes of its arrays."""

    def train(message: Message) -> Message:
        return reply(message, change(dict(message.content["arrays"])), **metrics)

    return train


def nan(arrays: dict[str, Array]) -> ArrayRecord:
    bad = arrays["1.weight"].numpy().copy()
    bad[0, 0] = np.nan
    return ArrayRecord({**arrays, "1.weight": Array(bad)})


def too_large(arrays: dict[str, Array]) -> ArrayRecord:
    """The declared shape is right, what comes is not."""
    return ArrayRecord({**arrays, "1.bias": Array("float32", (5,), "numpy.ndarray", bytes(1_000_000))})


def claiming(shape: tuple[int, ...]) -> bytes:
    """An array file whose own header claims another shape than it has bytes for."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue() + bytes(20)


def pickled(arrays: dict[str, Array]) -> ArrayRecord:
    stream = io.BytesIO()
    np.save(stream, np.array([{}] * 5, dtype=object), allow_pickle=True)
    return ArrayRecord({**arrays, "1.bias": Array("object", (5,), "numpy.ndarray", stream.getvalue())})


def replaced(**arrays: Array) -> Any:
    return lambda sent: ArrayRecord(
        {**sent, **{name.replace("__", "."): array for name, array in arrays.items()}}
    )


HOSTILE = "\x1b[2J<script>" + "x" * 10_000

BAD: dict[str, tuple[Client, str]] = {
    "nan": (sending(nan), "1 of 30 values are not finite"),
    "shape": (
        sending(replaced(**{"1__bias": Array(np.zeros(4, np.float32))})),
        "array '1.bias': expected shape (5,), declared (4,)",
    ),
    "missing": (
        sending(lambda sent: ArrayRecord({k: v for k, v in sent.items() if k != "1.bias"})),
        "array '1.bias' is missing",
    ),
    "extra": (sending(replaced(another=Array(np.zeros(1)))), "unexpected array 'another'"),
    "extra hostile": (
        sending(replaced(**{HOSTILE: Array(np.zeros(1))})),
        "unexpected array '\\x1b[2J<script>",
    ),
    "other model": (sending(lambda sent: ArrayRecord([np.zeros(2)])), "expected 4 arrays, got 1"),
    "integers": (
        sending(replaced(**{"1__bias": Array(np.zeros(5, np.int64))})),
        "tensor '1.bias': expected floating values, got integer",
    ),
    "large": (sending(too_large), "array '1.bias': 1000000 bytes are too many for its shape"),
    "claim": (
        sending(replaced(**{"1__bias": Array("float32", (5,), "numpy.ndarray", claiming((10**12,)))})),
        "array '1.bias': its content is not what it declares",
    ),
    "garbage": (
        sending(replaced(**{"1__bias": Array("float32", (5,), "numpy.ndarray", b"garbage")})),
        "array '1.bias': cannot be read (ValueError)",
    ),
    "pickle": (sending(pickled), "array '1.bias': its content is not what it declares"),
    "serialization": (
        sending(replaced(**{"1__bias": Array("float32", (5,), "pickle", b"x")})),
        "array '1.bias': unknown serialization 'pickle'",
    ),
    "negative size": (learner(1.0, num_examples=-3), "says it has '-3' samples"),
    "nan size": (learner(1.0, num_examples=float("nan")), "says it has 'nan' samples"),
    "list size": (learner(1.0, num_examples=[1, 2]), "says it has '[1, 2]' samples"),
    "empty": (lambda message: Message(RecordDict(), reply_to=message), "no arrays in its reply"),
    "two records": (
        lambda message: Message(
            RecordDict({"arrays": message.content["arrays"], "b": ArrayRecord()}), reply_to=message
        ),
        "unexpected array record 'b'",
    ),
    "error": (
        lambda message: Message(Error(2, HOSTILE), reply_to=message),
        "its app raised an error: '\\x1b[2J",
    ),
    "silent": (lambda message: None, "no reply in time"),
    "twice": (lambda message: [learner(1.0)(message), learner(2.0)(message)], "replied 2 times"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("rule", ["fedavg", "celm"])
def test_one_bad_client_is_excluded_with_its_reason_and_the_round_goes_on(rule: str, case: str) -> None:
    client, reason = BAD[case]
    grid = SmallGrid({"good": learner(1.0), "fine": learner(3.0), "bad": client})
    result = strategy(rule).start(grid, initial(), num_rounds=1)
    record = result.records[0]
    assert set(record["excluded"]) == {"bad"}
    assert record["excluded"]["bad"].removeprefix("tensor '1.weight': ").startswith(reason)
    assert len(record["excluded"]["bad"]) < 400
    assert record["excluded"]["bad"].isprintable()
    assert set(record["weights"]) == {"good", "fine"}
    assert sum(record["weights"].values()) == pytest.approx(1)
    if rule == "fedavg":
        before = state_of(network())
        for name, tensor in result.arrays.to_torch_state_dict().items():
            torch.testing.assert_close(tensor, before[name] + 2.0)


def test_a_reply_to_a_message_of_another_round_is_ignored() -> None:
    late: list[Message] = []

    def straggler(message: Message) -> list[Message]:
        late.append(learner(9.0)(message))  # type: ignore[arg-type]
        return late[-2:-1]

    grid = SmallGrid({"good": learner(1.0), "fine": learner(1.0), "late": straggler})
    result = strategy().start(grid, initial(), num_rounds=2)
    assert result.records[1]["excluded"] == {"late": "no reply in time"}
    assert result.records[1]["strays"] == [f"node {grid.ids['late']} answers no message of this round"]


def test_an_error_that_comes_from_the_superlink_is_put_down_to_the_node_it_stands_for() -> None:
    def gone(message: Message) -> Message:
        answer = Message(Error(5, "node unavailable"), reply_to=message)
        answer.metadata.__dict__["_src_node_id"] = 1
        return answer

    grid = SmallGrid({"good": learner(1.0), "fine": learner(1.0), "gone": gone})
    result = strategy().start(grid, initial(), num_rounds=1)
    assert result.records[0]["excluded"] == {"gone": "it left during the round: 'node unavailable'"}


def test_a_client_needs_no_metrics_and_may_call_its_arrays_anything() -> None:
    def unnamed(message: Message) -> Message:
        arrays = ArrayRecord([tensor.numpy() + 1 for tensor in arrays_of(message).values()])
        return Message(RecordDict({"weights": arrays}), reply_to=message)

    def in_another_order(message: Message) -> Message:
        moved = {name: tensor + 3 for name, tensor in reversed(arrays_of(message).items())}
        return reply(message, ArrayRecord(moved))

    def in_doubles(message: Message) -> Message:
        return reply(message, ArrayRecord({k: v.double() + 2 for k, v in arrays_of(message).items()}))

    grid = SmallGrid({"a": unnamed, "b": in_another_order, "c": in_doubles})
    result = strategy().start(grid, initial(), num_rounds=1)
    assert result.records[0]["excluded"] == {}
    before = state_of(network())
    for name, tensor in result.arrays.to_torch_state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, before[name] + 2.0)


def test_sizes_are_read_where_clients_report_them() -> None:
    grid = SmallGrid({"a": learner(0.0, num_examples=30), "b": learner(0.0, num_examples=10)})
    result = strategy(rule_options={"by_size": True}).start(grid, initial(), num_rounds=1)
    assert result.records[0]["weights"] == {"a": 0.75, "b": 0.25}
    assert result.records[0]["received"]["a"]["samples"] == 30


def test_metrics_of_clients_that_report_nonsense_are_left_out() -> None:
    def boasting(message: Message) -> Message:
        metrics = MetricRecord({"loss": float("inf"), "num-examples": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "m": metrics}), reply_to=message)

    grid = SmallGrid(
        {
            "a": learner(0.0, num_examples=3, loss=1.0),
            "b": learner(0.0, num_examples=1, loss=5.0),
            "c": boasting,
        }
    )
    result = strategy(fraction_evaluate=1.0).start(grid, initial(), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 2.0}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"loss": 1.0}


def test_arrays_that_do_not_fit_the_model_are_an_error_that_says_so() -> None:
    with pytest.raises(CelmError, match="the initial arrays are 1, but the model has 4 tensors"):
        Layout.of(ArrayRecord([np.zeros(3)]), state_of(network()))
    wrong = ArrayRecord({**initial(), "3.bias": Array(np.zeros(4, np.float32))})
    with pytest.raises(CelmError, match=r"array '3.bias': expected shape \(3,\), declared \(4,\)"):
        Layout.of(wrong, state_of(network()))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "<f2"])
def test_arrays_of_any_memory_order_and_byte_order_are_read(order: Any, kind: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(kind)
    layout = Layout(("w",), {"w": torch.zeros(2, 3)})
    found = layout.unpack(ArrayRecord({"w": Array(np.asarray(values, order=order))}))
    torch.testing.assert_close(found["w"], torch.arange(6.0).reshape(2, 3))


def test_what_goes_out_comes_back_the_same_even_scalars_and_counters() -> None:
    state = {"count": torch.tensor(7), "w": torch.randn(2, 2), "none": torch.zeros(0, 3)}
    layout = Layout.of(ArrayRecord(state), state)
    back = layout.unpack(layout.pack(state))
    for name, tensor in state.items():
        torch.testing.assert_close(back[name], tensor, rtol=0, atol=0)


def test_a_tensor_that_numpy_does_not_know_is_refused_with_a_hint() -> None:
    state = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(CelmError, match="bfloat16 cannot travel in Flower"):
        Layout(("w",), state).pack(state)


def test_a_refusal_is_bounded_however_many_dimensions_are_declared() -> None:
    layout = Layout(("w",), {"w": torch.zeros(2)})
    record = ArrayRecord({"w": Array("float32", tuple([1] * 10_000), "numpy.ndarray", b"")})
    with pytest.raises(Refusal) as refused:
        layout.unpack(record)
    assert len(str(refused.value)) < 200
