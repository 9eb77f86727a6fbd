"""Results of sites: what is used, and why others are not. The results are NVFlare's own objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'celm[nvflare]'")

import numpy as np
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from celm.nvflare.result_validation import NUM_STEPS, validate_results
from celm.nvflare.tensor_layout import TensorLayout
from celm.rules.messages import ServerMessage

SENT = {"weight": torch.ones(2, 3), "bias": torch.zeros(2), "steps": torch.tensor(4)}
LAYOUT = TensorLayout.from_initial_arrays(SENT, SENT)
GOOD = {"weight": torch.full((2, 3), 2.0), "bias": torch.ones(2), "steps": torch.tensor(5)}


def result(params: Any, kind: ParamsType = ParamsType.FULL, **meta: Any) -> Shareable:
    return FLModelUtils.to_shareable(FLModel(params_type=kind, params=params, meta=meta))


def validate(given: Shareable | str) -> tuple[Any, str | None]:
    validated = validate_results({"a": given}, {"a": ServerMessage(SENT)}, LAYOUT, [])
    return validated.updates.get("a"), validated.excluded.get("a")


@pytest.mark.parametrize(
    "convert",
    [
        lambda t: t,
        lambda t: t.numpy(),
        lambda t: t.double() if t.is_floating_point() else t.int(),
        lambda t: t.numpy()[()],
    ],
)
def test_tensors_and_numpy_arrays_are_read(convert: Callable[[Any], Any]) -> None:
    update, reason = validate(result({name: convert(t) for name, t in GOOD.items()}, **{NUM_STEPS: 7}))
    assert reason is None
    assert (update.num_steps, update.num_examples) == (7, 7)
    for name, tensor in GOOD.items():
        assert update.model[name].dtype == tensor.dtype
        assert torch.equal(update.model[name], tensor)


def test_arrays_of_another_byte_order_are_read() -> None:
    swapped = {
        name: tensor.numpy().astype(tensor.numpy().dtype.newbyteorder()) for name, tensor in GOOD.items()
    }
    update, _ = validate(result(swapped))
    assert all(torch.equal(update.model[name], tensor) for name, tensor in GOOD.items())


def test_a_difference_is_added_to_the_model_that_the_site_was_sent() -> None:
    update, _ = validate(result({name: GOOD[name] - SENT[name] for name in SENT}, ParamsType.DIFF))
    assert all(torch.equal(update.model[name], tensor) for name, tensor in GOOD.items())


def test_an_update_does_not_share_memory_with_the_result() -> None:
    given = {name: tensor.clone() for name, tensor in GOOD.items()}
    update, _ = validate(result(given))
    given["weight"].zero_()
    assert torch.equal(update.model["weight"], GOOD["weight"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bias": torch.tensor([1.0, float("nan")])}, "1 of 2 values are not finite"),
        ({"bias": torch.zeros(3)}, "expected shape (2,), got (3,)"),
        ({"bias": torch.zeros([1] * 40)}, "got of 40 dimensions"),
        ({"bias": None}, "array 'bias' is missing"),
        ({"other": torch.zeros(1)}, "unexpected array 'other'"),
        ({"bias": [0.0, 0.0]}, "expected a tensor, got 'list'"),
        ({"bias": np.array(["a", "b"])}, "expected a tensor, got 'ndarray'"),
        ({"bias": torch.zeros(2).to_sparse()}, "expected a tensor"),
        ({"bias": torch.zeros(2, device="meta")}, "expected a tensor"),
        ({"bias": np.zeros(2, dtype="f16")}, "not a number type of models"),
        ({"steps": torch.tensor(0.5)}, "steps"),
    ],
)
def test_unusable_arrays_exclude_the_site(change: dict[str, Any], reason: str) -> None:
    params = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    update, excluded = validate(result(params))
    assert update is None
    assert excluded is not None
    assert reason in excluded


def test_a_difference_that_overflows_excludes_the_site() -> None:
    largest = torch.full((2, 3), torch.finfo(torch.float32).max)
    huge = {**GOOD, "weight": largest}
    validated = validate_results(
        {"a": result(huge, ParamsType.DIFF)}, {"a": ServerMessage({**SENT, "weight": largest})}, LAYOUT, []
    )
    assert "not finite" in validated.excluded["a"]


@pytest.mark.parametrize("count", [-1, float("nan"), 1e300, "many", [1]])
def test_a_number_of_steps_that_is_not_a_count_excludes_the_site(count: object) -> None:
    _, excluded = validate(result(GOOD, **{NUM_STEPS: count}))
    assert excluded is not None
    assert "local steps" in excluded


def test_errors_and_results_without_content_exclude_the_site() -> None:
    assert validate("no reply in time")[1] == "no reply in time"
    assert "EXECUTION_EXCEPTION" in str(validate(make_reply(ReturnCode.EXECUTION_EXCEPTION))[1])
    assert "cannot be read" in str(validate(Shareable())[1])
    assert "send tensors" in str(validate(result({}))[1])


def test_a_bad_result_does_not_stop_the_others() -> None:
    given = {"a": result(GOOD), "b": result({"weight": 1}), "c": "it left during the round"}
    validated = validate_results(given, dict.fromkeys(given, ServerMessage(SENT)), LAYOUT, ["late"])
    assert list(validated.updates) == ["a"]
    assert set(validated.excluded) == {"b", "c"}
    assert validated.unexpected == ["late"]
