"""Outputs of audited models: logits, declared probabilities, and what is neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from support.audited_models import audited, network, squashed


class Functional(nn.Module):
    """A network whose outputs pass a function that is not a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = network(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x))


def sigmoid_function() -> nn.Module:
    return Functional(torch.sigmoid)


@pytest.mark.parametrize(
    ("build", "returns"),
    [
        (squashed(nn.Sigmoid), "sigmoid"),
        (squashed(lambda: nn.Softmax(dim=1)), "softmax"),
        (squashed(lambda: nn.LogSoftmax(dim=1)), "softmax"),
        (sigmoid_function, "sigmoid"),
    ],
)
def test_probabilities_are_converted_to_logits(build: Callable[[], nn.Module], returns: str) -> None:
    result = audited(build, output=returns, preset=None)
    plain = audited(network, preset=None)
    for name, row in plain.evidence.items():
        assert result.evidence[name] == pytest.approx(row, abs=1e-4)


def test_log_probabilities_without_a_layer_are_those_of_a_softmax() -> None:
    softmax, log_softmax = (
        audited(lambda function=function: Functional(lambda x: function(x, dim=1)), output="softmax")
        for function in (torch.softmax, torch.log_softmax)
    )
    assert any(map(sum, softmax.evidence.values()))
    for name, row in softmax.evidence.items():
        assert log_softmax.evidence[name] == pytest.approx(row, abs=1e-4)


@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
def test_outputs_that_are_not_the_declared_probabilities_are_refused(output: str) -> None:
    with pytest.raises(CelmError, match=rf"output={output}: the model returns values from -\d.*logits"):
        audited(network, output=output, preset=None)


@pytest.mark.parametrize(
    ("layer", "hint"),
    [
        (nn.Sigmoid, "set output=sigmoid"),
        (lambda: nn.Softmax(dim=1), "set output=softmax"),
        (lambda: nn.LogSoftmax(dim=1), "set output=softmax"),
    ],
)
def test_undeclared_probabilities_are_refused(layer: Callable[[], nn.Module], hint: str) -> None:
    with pytest.raises(CelmError, match=f"returns probabilities.*{hint}"):
        audited(squashed(layer))


def test_an_undeclared_sigmoid_without_a_layer_is_found() -> None:
    with pytest.raises(CelmError, match="set output=sigmoid"):
        audited(sigmoid_function)


def test_a_registered_sigmoid_that_does_not_squash_the_output_is_not_refused() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.act = nn.Linear(48, 8), nn.Linear(8, 3), nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.act(self.first(x.flatten(1))))
            return out

    assert list(audited(Inner).scores) == ["a", "b"]


def test_other_tasks_are_refused() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner(x), x

    with pytest.raises(CelmError, match=r"must return logits, not tuple.*`logits`"):
        audited(Pair)
    with pytest.raises(CelmError, match="one output for each input, as in regression"):
        audited(lambda: network(1))
    with pytest.raises(CelmError, match="1 class: "):
        audited(network, classes=["cat"])
    with pytest.raises(CelmError, match=r"multi-label.*evidence=paper"):
        audited(squashed(nn.Sigmoid), output="sigmoid", evidence="calibrated")
