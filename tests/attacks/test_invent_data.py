"""A client that makes its data up: what it sends, by hand, and the same pictures in every round."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from celm.attacks.attack import Upload
from celm.attacks.invent_data import InventData
from celm.base.randomness import generator
from celm.rules.rule import Facts

MODULE = nn.Linear(3, 2)
FACTS = Facts(("client-0",), 2, (3,), 10, 7, MODULE, ("weight", "bias"))


def sent(attack: InventData, delivered: dict[str, Tensor], number: int = 1) -> dict[str, Tensor]:
    return attack.upload(Upload(number, {}, delivered, None, torch.Generator().manual_seed(number), FACTS))


def delivered() -> dict[str, Tensor]:
    return {"weight": torch.arange(6.0).view(2, 3) / 10, "bias": torch.tensor([0.3, -0.2])}


def test_one_step_is_gradient_descent_on_noise() -> None:
    """The gradient of cross-entropy by the logits is softmax minus the label."""
    start = delivered()
    x = torch.randn(2, 3, generator=generator(7, "invented", "client-0"))
    slope = (torch.softmax(x @ start["weight"].T + start["bias"], 1) - torch.eye(2)) / 2
    found = sent(InventData(strength=1.0, rate=0.5), start)
    torch.testing.assert_close(found["weight"], start["weight"] - 0.5 * slope.T @ x)
    torch.testing.assert_close(found["bias"], start["bias"] - 0.5 * slope.sum(0))


def test_it_learns_its_pictures_which_are_the_same_in_every_round() -> None:
    attack = InventData(strength=400.0, rate=0.5)
    x = torch.randn(2, 3, generator=generator(7, "invented", "client-0"))
    for number in (1, 5):
        found = sent(attack, delivered(), number)
        assert (x @ found["weight"].T + found["bias"]).argmax(1).tolist() == [0, 1]
    assert torch.equal(found["weight"], sent(attack, delivered(), 2)["weight"])


def test_neither_what_was_delivered_nor_the_federations_module_changes() -> None:
    start, before = delivered(), {name: tensor.clone() for name, tensor in MODULE.state_dict().items()}
    sent(InventData(), start)
    assert all(torch.equal(tensor, delivered()[name]) for name, tensor in start.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in MODULE.state_dict().items())


@pytest.mark.parametrize("number", [1, 9])
def test_it_has_nothing_to_train_on(number: int) -> None:
    assert not InventData().trains(number, 10)
