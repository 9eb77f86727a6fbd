"""Wrong arguments of the pure functions are one line; arrays, and lengths of flat inputs, are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import celm


class Detached(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


class Labels(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(2 * [super().forward(x).argmax(1)], dim=1)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))


WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "class index": ([linear()], (3,), [0, 2], "class 2 is out of range: the model has 2 outputs"),
    "too many classes": ([linear()], (3,), 5, "class 4 is out of range"),
    "negative index": ([linear()], (3,), [-1, 0], "class -1 is out of range"),
    "classes": ([linear()], (3,), "ab", "classes must be"),
    "one model": (linear(), (3,), 2, "models must be a list"),
    "state dict": ([linear(), linear().state_dict()], (3,), 2, "model 1 is not a module.*load_state_dict"),
    "shape": ([linear()], (3, 0), 2, "whole numbers from 1"),
    "fractional shape": ([linear()], (1.5,), 2, "whole numbers from 1"),
    "embedding": ([tokens()], (3,), 2, "whole numbers, such as tokens.*layer='0'"),
    "detached": ([Detached(3, 2)], (3,), 2, "do not depend on its inputs"),
    "labels": ([Labels(3, 2)], (3,), 2, "int64, not logits"),
    "probabilities": ([nn.Sequential(linear(), nn.Softmax(1))], (3,), 2, "probabilities"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_of_a_probe_are_one_line(case: str) -> None:
    models, inputs, classes, match = WRONG[case]
    with pytest.raises(celm.CelmError, match=match) as refused:
        celm.probe(models, inputs, classes, steps=1)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("setting", [{"steps": -1}, {"steps": 1.5}, {"lr": 0.0}, {"l2": -1.0}])
def test_wrong_settings_of_a_probe_are_named(setting: dict[str, float]) -> None:
    with pytest.raises(celm.CelmError, match=next(iter(setting))):
        celm.probe([linear()], (3,), 2, **setting)


def test_arrays_and_flat_lengths_give_the_result_of_tensors_and_shapes() -> None:
    start = torch.randn(1, 2, 3)
    for first, second in (((3,), 3), (start, start.numpy())):
        one, two = (celm.probe([linear()], inputs, 2, steps=3).logits for inputs in (first, second))
        assert torch.equal(one, two)
    client, server = torch.randn(2, 4), torch.randn(4)
    Q = celm.evidence(client, server)
    assert torch.equal(celm.evidence(client.numpy(), server.numpy()), Q)
    assert torch.equal(celm.shares(Q.numpy()), celm.shares(Q))
    assert torch.equal(celm.scores(Q.tolist()), celm.scores(Q))


def test_a_flat_input_of_an_audit_may_be_its_length() -> None:
    model = linear()
    clients = {"a": {name: value + 0.1 for name, value in model.state_dict().items()}}
    few = {"classes": 2, "probe": {"steps": 1}, "num_starts": 1}
    one, two = (celm.audit(model, clients, input_shape=shape, **few) for shape in (3, (3,)))
    assert one.evidence == two.evidence


@pytest.mark.parametrize("function", [celm.shares, celm.scores])
@pytest.mark.parametrize(
    ("value", "match"),
    [
        (np.ones(3), r"\[N, K\]"),
        ([[1.0, -1.0]], "negative"),
        ([[1.0, 1.0], [np.nan, 1.0]], r"rows \[1\]"),
        ("Q", "tensor or an array"),
    ],
)
def test_wrong_evidence_is_one_line(function: Any, value: Any, match: str) -> None:
    with pytest.raises(celm.CelmError, match=match):
        function(value)
