"""State dicts, and the check of a client's upload."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.models.state_dict import cast_like, describe_mismatch, get_state, load_state


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_state_is_a_copy_of_parameters_and_buffers() -> None:
    model = network()
    state = get_state(model)
    assert {"1.running_mean", "1.num_batches_tracked"} <= set(state)
    before = {name: tensor.clone() for name, tensor in state.items()}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert not any(tensor.requires_grad for tensor in state.values())
    load_state(model, state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_state_that_does_not_fit_is_not_loaded() -> None:
    state = get_state(network())
    del state["1.running_mean"]
    with pytest.raises(CelmError, match=r"does not fit the model: tensor '1\.running_mean' is missing"):
        load_state(network(), state)


def test_a_model_that_keeps_more_than_tensors_is_refused() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(CelmError, match="'_extra_state' is not a tensor"):
        get_state(Extra(1, 1))


REFERENCE = {
    "fc1.weight": torch.zeros(128, 64),
    "steps": torch.tensor(3),
    "mask": torch.tensor([True]),
}


def altered(**changes: Any) -> dict[str, Any]:
    return {**REFERENCE, **{name.replace("__", "."): value for name, value in changes.items()}}


def weight(value: Any) -> dict[str, Any]:
    return altered(fc1__weight=value)


def test_matching_states() -> None:
    assert describe_mismatch(dict(REFERENCE), REFERENCE) is None
    assert describe_mismatch(dict(reversed(REFERENCE.items())), REFERENCE) is None
    assert describe_mismatch(weight(torch.zeros(128, 64).double()), REFERENCE) is None
    assert describe_mismatch({}, {}) is None
    assert describe_mismatch({"a": torch.zeros(0)}, {"a": torch.zeros(0)}) is None


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (weight(torch.zeros(64, 128)), "W: expected shape (128, 64), got (64, 128)"),
        (weight(torch.zeros(128, 64).int()), "W: expected floating values, got integer"),
        (altered(steps=torch.tensor(3.0)), "tensor 'steps': expected integer values, got floating"),
        (altered(mask=torch.tensor([1])), "tensor 'mask': expected boolean values, got integer"),
        (altered(steps=3), "tensor 'steps': expected a tensor, got int"),
        (altered(other=torch.zeros(1)), "unexpected tensor 'other'"),
        ({name: REFERENCE[name] for name in ("steps", "mask")}, "tensor 'fc1.weight' is missing"),
        (weight(torch.full((128, 64), float("nan"))), "W: 8192 of 8192 values are not finite"),
        # Finite as sent, infinite once it is what the model holds.
        (weight(torch.full((128, 64), 1e300, dtype=torch.float64)), "W: 8192 of 8192 values are not finite"),
        (weight(torch.zeros(128, 64).to_sparse()), "W: expected a dense tensor"),
        (weight(torch.zeros(128, 64, device="meta")), "W: expected a dense tensor"),
        (weight(torch.zeros([1] * 60)), "W: expected shape (128, 64), got of 60 dimensions"),
        ([1, 2], "expected named tensors, got list"),
        (None, "expected named tensors, got NoneType"),
        (dict([*REFERENCE.items(), (7, torch.zeros(1))]), "unexpected tensor of int name"),
    ],
)
def test_the_first_difference_is_named(state: Any, message: str) -> None:
    assert describe_mismatch(state, REFERENCE) == message.replace("W:", "tensor 'fc1.weight':")


def test_one_infinite_value_among_many_is_found() -> None:
    values = torch.zeros(128, 64)
    values[100, 3] = float("-inf")
    message = describe_mismatch(weight(values), REFERENCE)
    assert message == "tensor 'fc1.weight': 1 of 8192 values are not finite"


class Hostile(dict[str, Tensor]):
    def __getitem__(self, key: str) -> Tensor:
        raise RuntimeError("\n<script>" * 1000)


def test_a_hostile_mapping_is_described_not_raised() -> None:
    assert describe_mismatch(Hostile(REFERENCE), REFERENCE) == "cannot be read (RuntimeError)"


@given(
    st.text()
    | st.sampled_from(["\n\x1b[31m", "'" * 500, "\"'" * 500, "x" * 10_000, "\U0001f600" * 90, "\udc80"])
)
def test_hostile_names_are_bounded_and_escaped(name: str) -> None:
    message = describe_mismatch({**REFERENCE, f"{name} ": torch.zeros(1)}, REFERENCE)
    assert message is not None
    assert len(message) < 150
    assert message.isascii()
    assert message.isprintable()


VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=5),
    st.sampled_from(
        [torch.zeros(128, 64), torch.tensor(1), torch.tensor([False]), torch.zeros(2, dtype=torch.cfloat)]
    ),
)


@given(st.dictionaries(st.sampled_from([*REFERENCE, "other"]) | st.integers(), VALUES))
def test_nothing_is_ever_raised(state: dict[Any, Any]) -> None:
    message = describe_mismatch(state, REFERENCE)
    assert message is None or ("\n" not in message and len(message) < 150)


def test_cast_like_gives_the_references_order_and_dtypes() -> None:
    sent = dict(reversed(weight(torch.full((128, 64), 0.1).double()).items()))
    fitted = cast_like(sent, REFERENCE)
    assert list(fitted) == list(REFERENCE)
    assert {name: tensor.dtype for name, tensor in fitted.items()} == {
        name: tensor.dtype for name, tensor in REFERENCE.items()
    }
    assert torch.equal(fitted["fc1.weight"], torch.full((128, 64), 0.1))
