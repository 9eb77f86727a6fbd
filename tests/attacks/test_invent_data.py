"""A client that invents its data: its upload by hand, and the same images in every round."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from celm.attacks.attack import AttackContext
from celm.attacks.invent_data import InventData
from celm.base.randomness import make_generator
from celm.rules.rule import ServerContext

MODULE = nn.Linear(3, 2)
FACTS = ServerContext(("client-0",), 2, (3,), 10, 7, MODULE, ("weight", "bias"))


def sent(attack: InventData, delivered: dict[str, Tensor], number: int = 1) -> dict[str, Tensor]:
    return attack.poison(
        AttackContext(number, {}, delivered, None, torch.Generator().manual_seed(number), FACTS)
    )


def delivered() -> dict[str, Tensor]:
    return {"weight": torch.arange(6.0).view(2, 3) / 10, "bias": torch.tensor([0.3, -0.2])}


def test_one_step_is_gradient_descent_on_noise() -> None:
    """The gradient of cross-entropy by the logits is softmax minus the label."""
    start = delivered()
    x = torch.randn(2, 3, generator=make_generator(7, "invented", "client-0"))
    slope = (torch.softmax(x @ start["weight"].T + start["bias"], 1) - torch.eye(2)) / 2
    result = sent(InventData(strength=1.0, rate=0.5), start)
    torch.testing.assert_close(result["weight"], start["weight"] - 0.5 * slope.T @ x)
    torch.testing.assert_close(result["bias"], start["bias"] - 0.5 * slope.sum(0))


def test_it_learns_its_images_which_are_the_same_in_every_round() -> None:
    attack = InventData(strength=400.0, rate=0.5)
    x = torch.randn(2, 3, generator=make_generator(7, "invented", "client-0"))
    for number in (1, 5):
        result = sent(attack, delivered(), number)
        assert (x @ result["weight"].T + result["bias"]).argmax(1).tolist() == [0, 1]
    assert torch.equal(result["weight"], sent(attack, delivered(), 2)["weight"])


def test_neither_the_received_model_nor_the_federations_module_changes() -> None:
    start, before = delivered(), {name: tensor.clone() for name, tensor in MODULE.state_dict().items()}
    sent(InventData(), start)
    assert all(torch.equal(tensor, delivered()[name]) for name, tensor in start.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in MODULE.state_dict().items())


@pytest.mark.parametrize("number", [1, 9])
def test_it_does_not_train_on_data(number: int) -> None:
    assert not InventData().trains_in(number, 10)
