"""Whatever a client sends: it counts, or it is excluded with a reason, and the round goes on."""

from __future__ import annotations

import io
import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from celm.base.errors import CelmError
from celm.flower import CelmStrategy, ContributionStrategy
from celm.flower.array_codec import FlowerLayout
from celm.flower.reply_validation import parse_reply
from celm.live.array_layout import InvalidReplyError
from celm.live.round_record import check_chain
from celm.models.state_dict import describe_mismatch, get_state
from support.small_grid import Client, SmallGrid, arrays_of, initial, learner, network, reply


def strategy(rule: str = "fedavg", **options: Any) -> ContributionStrategy:
    usual: dict[str, Any] = {
        "fraction_evaluate": 0.0,
        "retry_wait": 0.0,
        "probe": {"steps": 2},
        "preset": None,
    }
    return ContributionStrategy(rule, network(), (6,), 3, **{**usual, **options})


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


def claiming(shape: Any, kind: Any = "<f4", size: int = 20, fortran: Any = False) -> bytes:
    """An array file whose own header claims what we like, whatever it has bytes for."""
    header = repr({"descr": kind, "fortran_order": fortran, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + bytes(size)


def bias(data: bytes) -> Array:
    """An array that is declared as it should be."""
    return Array("float32", (5,), "numpy.ndarray", data)


def of_kind(kind: Any, width: int) -> Client:
    """A client whose array is of the right shape and size, while its own header says numbers of another kind."""
    return sending(replaced(**{"1__bias": bias(claiming((5,), kind, 5 * width))}))


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
        sending(replaced(**{"1__bias": bias(claiming((10**12,)))})),
        "array '1.bias': its content does not match",
    ),
    "garbage": (
        sending(replaced(**{"1__bias": bias(b"garbage")})),
        "array '1.bias': cannot be read (ValueError)",
    ),
    "pickle": (sending(pickled), "array '1.bias': 'object' is not a number type"),
    "dates": (
        of_kind("<M8[s]", 8),
        "array '1.bias': 'datetime64[s]' is not a number type",
    ),
    "text": (of_kind("<U1", 4), "array '1.bias': '<U1' is not a number type"),
    "bytes": (of_kind("|S4", 4), "array '1.bias': '|S4' is not a number type"),
    "void": (of_kind("|V4", 4), "array '1.bias': '|V4' is not a number type"),
    "structured": (of_kind([("x" * 500, "<f4")], 4), "array '1.bias': \"[('xxxx"),
    "quadruple": (of_kind("<f16", 16), "array '1.bias': "),  # not every platform's numpy has it
    "complex": (of_kind("<c8", 8), "tensor '1.bias': expected floating values, got complex"),
    "boolean": (of_kind("|b1", 1), "tensor '1.bias': expected floating values, got boolean"),
    # Nothing that travels: a stand-in for whatever no check foresees.
    "unforeseen": (learner(1.0, examined_accuracy=10**400), "cannot be read (OverflowError)"),
    "serialization": (
        sending(replaced(**{"1__bias": Array("float32", (5,), "pickle", b"x")})),
        "array '1.bias': unknown serialization 'pickle'",
    ),
    "negative size": (learner(1.0, num_examples=-3), "reports '-3' samples"),
    "nan size": (learner(1.0, num_examples=float("nan")), "reports 'nan' samples"),
    "list size": (learner(1.0, num_examples=[1, 2]), "reports '[1, 2]' samples"),
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


KINDS: dict[Any, int] = {
    **{"<f4": 4, ">f4": 4, "<f8": 8, ">f2": 2, "<f16": 16, "<c8": 8, ">c16": 16, "<c32": 32},
    **{"|b1": 1, "|i1": 1, "<i8": 8, ">u2": 2, "<u8": 8, "<M8[s]": 8, "<m8": 8, "<U1": 4, "<U0": 0},
    **{"|S4": 4, "|S0": 0, "|V4": 4, "|V0": 0, "|O": 8, "(2,)<f4": 8, "<f4,<i4": 8, "nonsense": 4, "": 4},
    **{None: 4, 7: 4, (("a", "<f4"),): 4, (("a", "|O"),): 8, (("a", "<f4", (2,)),): 8, (): 4},
}
"""What a header may say of the numbers, and their bytes; tuples stand for lists of fields."""
SHAPES: list[Any] = [(5.0,), (True,), (-5,), (0,), (), (5, 1), (2**63,), (10**30, 0), [5], None, "5"]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Array files with the bytes that they claim, or not; some of them torn, some with bytes changed."""
    kind, width = draw(st.sampled_from(list(KINDS.items())))
    shape = draw(st.just((5,)) | st.sampled_from(SHAPES))
    size = draw(st.just(5 * width) | st.integers(0, 200))
    data = claiming(shape, list(kind) if isinstance(kind, tuple) else kind, size, draw(st.booleans()))
    changes = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)
    for place, value in draw(st.just([]) | changes):
        data = data[:place] + bytes([value]) + data[place + 1 :]
    return data[: draw(st.none() | st.integers(0, len(data)))]


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats()


@given(
    data=files() | st.binary(max_size=200),
    shape=st.just((5,)) | st.sampled_from([(4,), (), (-5,), (True,), (5,) * 100]),
    serialization=st.just("numpy.ndarray") | st.sampled_from(["pickle", ""]),
    said=st.dictionaries(
        st.sampled_from(["num-examples", "num-steps", "examined-accuracy", "loss"]),
        numbers | st.lists(st.floats(), max_size=3),
    ),
)
@settings(max_examples=400, deadline=None)
def test_whatever_comes_is_either_an_update_that_fits_or_a_refusal(
    data: bytes, shape: tuple[int, ...], serialization: str, said: dict[str, Any]
) -> None:
    reference = {"bias": torch.zeros(5)}
    layout = FlowerLayout(("bias",), reference)
    arrays = ArrayRecord({"bias": Array("float32", shape, serialization, data)})
    SmallGrid({})  # without a grid there are no messages
    asked = Message(RecordDict(), 1, "train")
    answer = Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(said)}), reply_to=asked)
    try:
        update = parse_reply(answer, layout, "arrays", "num-examples")
    except InvalidReplyError as refusal:
        reason = str(refusal)
    else:
        assert describe_mismatch(update.model, reference) is None
        assert update.model["bias"].dtype is torch.float32
        assert 0 <= update.num_examples < 2**53
        return
    assert len(reason) < 400
    assert reason.isprintable()


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
        before = get_state(network())
        for name, tensor in result.arrays.to_torch_state_dict().items():
            torch.testing.assert_close(tensor, before[name] + 2.0)


def test_a_client_that_sends_something_else_in_every_round_does_not_end_the_federation() -> None:
    kinds = [("<M8[s]", 8), ("<U1", 4), ("|S4", 4), ("|V4", 4), ([("x", "<f4")], 4), ("<f16", 16)]

    def hostile(message: Message) -> Message:
        kind = kinds[int(message.content["config"]["server-round"]) - 1]
        return of_kind(*kind)(message)  # type: ignore[return-value]

    grid = SmallGrid({"good": learner(0.1), "fine": learner(0.3), "bad": hostile})
    play = CelmStrategy(network(), (6,), 3, probe={"steps": 2}, fraction_evaluate=0.0, preset=None)
    result = play.start(grid, initial(), num_rounds=len(kinds))
    assert [list(record["excluded"]) for record in result.records] == [["bad"]] * len(kinds)
    assert [sorted(record["weights"]) for record in result.records] == [["fine", "good"]] * len(kinds)


def test_a_merge_that_overflows_leaves_the_global_model_and_is_in_the_record() -> None:
    def huge(message: Message) -> Message:
        sent = {name: torch.full_like(tensor, 3e38) for name, tensor in arrays_of(message).items()}
        return reply(message, ArrayRecord(sent), **{"num-steps": 1, "num-examples": 1000})

    grid = SmallGrid({"good": learner(0.1, **{"num-steps": 1000}), "fine": learner(0.3), "huge": huge})
    play = ContributionStrategy("fednova", network(), (6,), 3, fraction_evaluate=0.0, preset=None)
    result = play.start(grid, initial(), num_rounds=3)
    assert "not finite" in result.records[0]["merge"]
    assert all(torch.from_numpy(array.numpy()).isfinite().all() for array in result.arrays.values())
    check_chain(result.records)


def test_what_no_check_foresees_is_logged_with_where_it_happened(caplog: pytest.LogCaptureFixture) -> None:
    grid = SmallGrid({"good": learner(1.0), "fine": learner(1.0), "bad": BAD["unforeseen"][0]})
    logging.getLogger("flwr").addHandler(caplog.handler)
    strategy().start(grid, initial(), num_rounds=1)
    logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "the reply of bad cannot be read" in caplog.text
    assert "Traceback" in caplog.text


def test_a_reply_to_a_message_of_another_round_is_ignored() -> None:
    late: list[Message] = []

    def straggler(message: Message) -> list[Message]:
        late.append(learner(9.0)(message))  # type: ignore[arg-type]
        return late[-2:-1]

    grid = SmallGrid({"good": learner(1.0), "fine": learner(1.0), "late": straggler})
    result = strategy().start(grid, initial(), num_rounds=2)
    assert result.records[1]["excluded"] == {"late": "no reply in time"}
    assert result.records[1]["unexpected"] == [f"node {grid.ids['late']} answers no message of this round"]


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
    before = get_state(network())
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
    with pytest.raises(CelmError, match="initial arrays: 1, but the model has 4 tensors"):
        FlowerLayout.from_initial_arrays(ArrayRecord([np.zeros(3)]), get_state(network()))
    wrong = ArrayRecord({**initial(), "3.bias": Array(np.zeros(4, np.float32))})
    with pytest.raises(CelmError, match=r"array '3.bias': expected shape \(3,\), declared \(4,\)"):
        FlowerLayout.from_initial_arrays(wrong, get_state(network()))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "<f2"])
def test_arrays_of_any_memory_order_and_byte_order_are_read(order: Any, kind: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(kind)
    layout = FlowerLayout(("w",), {"w": torch.zeros(2, 3)})
    found = layout.decode_state(ArrayRecord({"w": Array(np.asarray(values, order=order))}))
    torch.testing.assert_close(found["w"], torch.arange(6.0).reshape(2, 3))


def test_what_goes_out_comes_back_the_same_even_scalars_and_counters() -> None:
    state = {"count": torch.tensor(7), "w": torch.randn(2, 2), "none": torch.zeros(0, 3)}
    layout = FlowerLayout.from_initial_arrays(ArrayRecord(state), state)
    back = layout.decode_state(layout.encode_state(state))
    for name, tensor in state.items():
        torch.testing.assert_close(back[name], tensor, rtol=0, atol=0)


def test_a_tensor_that_numpy_does_not_know_is_refused_with_a_hint() -> None:
    state = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(CelmError, match="bfloat16"):
        FlowerLayout(("w",), state).encode_state(state)


def test_a_refusal_is_bounded_however_many_dimensions_are_declared() -> None:
    layout = FlowerLayout(("w",), {"w": torch.zeros(2)})
    record = ArrayRecord({"w": Array("float32", tuple([1] * 10_000), "numpy.ndarray", b"")})
    with pytest.raises(InvalidReplyError) as refused:
        layout.decode_state(record)
    assert len(str(refused.value)) < 200
