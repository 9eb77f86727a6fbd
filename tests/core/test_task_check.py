"""Wrong tasks are refused, honest outputs never, and the check leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import celm
from celm.base.errors import CelmError
from celm.core.task_check import find_squashing

SHAPE = (20,)


class Head(nn.Module):
    """A network whose outputs pass through a function. Its registered softmax and sigmoid are never called."""

    def __init__(self, function: Callable[[Tensor], object], outputs: int = 3, depth: int = 2) -> None:
        super().__init__()
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(20, 20), nn.ReLU())]
        self.net = nn.Sequential(*hidden, nn.Linear(20, outputs))
        self.function = function
        self.unused = nn.ModuleList([nn.Softmax(dim=1), nn.Sigmoid()])

    def forward(self, x: Tensor) -> object:
        return self.function(self.net(x))


def made(seed: int, function: Callable[[Tensor], object], outputs: int = 3, depth: int = 2) -> Head:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Head(function, outputs, depth).eval()


def guessing(model: Head) -> Head:
    """Let the head return 1/K for every class, as a hostile or a fresh head may."""
    last = model.net[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, 1 / last.out_features)
    return model


def found(model: nn.Module, inputs: Tensor) -> str | None:
    with torch.no_grad():
        return find_squashing(model, inputs, model(inputs))


HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda y: y,
    "small": lambda y: 0.01 * y.abs(),
    "relu": torch.relu,
    "softplus": nn.functional.softplus,
    "tanh": torch.tanh,
    "negative distances": lambda y: -y.square(),
    "centred": lambda y: y - y.mean(dim=1, keepdim=True) + 1 / y.shape[1],  # sums to 1, with negative values
}
SQUASHED: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda y: y.softmax(dim=1),
    "log-softmax": lambda y: y.log_softmax(dim=1),
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("outputs", [2, 10])
@pytest.mark.parametrize("name", HONEST)
def test_honest_outputs_are_never_taken_for_probabilities(name: str, outputs: int) -> None:
    for seed in range(6):
        for change in (guessing, lambda model: model):
            model = change(made(seed, HONEST[name], outputs))
            assert found(model, torch.zeros(2, *SHAPE)) is None
            assert found(model, torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(seed))) is None


@pytest.mark.parametrize("depth", [1, 12])
@pytest.mark.parametrize("outputs", [2, 10])
@pytest.mark.parametrize("name", SQUASHED)
def test_probabilities_are_found_whatever_the_weights(name: str, outputs: int, depth: int) -> None:
    for seed in range(3):
        for change in (guessing, lambda model: model):
            model = change(made(seed, SQUASHED[name], outputs, depth))
            assert found(model, torch.zeros(2, *SHAPE)) == name


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (made(0, SQUASHED["softmax"]), r"probabilities \(softmax\).*return logits"),
        (made(0, SQUASHED["log-softmax"]), r"probabilities \(log-softmax\)"),
        (made(0, SQUASHED["sigmoid"]), r"probabilities \(sigmoid\)"),
        (made(0, HONEST["linear"], outputs=1), "one output.*regression"),
        (made(0, lambda y: y[:, 0]), "one output.*regression"),
        (made(0, lambda y: (y, y)), "must return logits, not tuple.*`logits`"),
        (made(0, lambda y: {"scores": y}), "must return logits, not dict.*`logits`"),
    ],
)
def test_a_probe_refuses_wrong_outputs_in_one_line(model: nn.Module, words: str) -> None:
    with pytest.raises(CelmError, match=words) as refused:
        celm.probe([made(1, HONEST["linear"]), model], SHAPE, 2, steps=1)
    assert "\n" not in str(refused.value)


def test_a_probe_of_one_class_is_refused_and_one_class_of_several_is_not() -> None:
    model = made(0, HONEST["linear"])
    with pytest.raises(CelmError, match="1 class"):
        celm.probe([model], SHAPE, 1, steps=1)
    assert celm.probe([model], SHAPE, [2], steps=1).logits.shape == (1, 1)


def test_the_check_changes_neither_random_numbers_nor_models() -> None:
    class Noisy(Head):
        def forward(self, x: Tensor) -> object:
            torch.rand(3)
            return self.net(x)

    model = Noisy(HONEST["linear"]).train()
    guessing(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    celm.core.probe.prepare_probe([model], SHAPE, 3, seed=0)  # type: ignore[attr-defined]
    assert torch.equal(torch.rand(4), expected)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
