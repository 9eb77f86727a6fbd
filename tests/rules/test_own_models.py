"""Rules that let clients go on from their own models: from what they trained, whatever they sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from celm.rules.cffl import Cffl
from celm.rules.cgsv import Cgsv
from celm.rules.exchange import Round
from celm.rules.rffl import Rffl
from celm.rules.shapfed import ShapFed
from celm.rules.standalone import Standalone
from rules.rounds import a_round, facts_of, module_of

START = {"w": torch.tensor([0.0, 0.0])}
TRAINED = {"w": torch.tensor([0.004, 0.001])}
SENT = {"w": torch.tensor([0.4, -0.1])}
OTHER = {"w": torch.tensor([0.0, 0.006])}
FACTS = facts_of(module_of(w=2))


def lied(**more: object) -> Round:
    """Client a trained one thing and sent another; b is honest."""
    return a_round(START, {"a": SENT, "b": OTHER}, own={"a": TRAINED}, **more)


def validate(models: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.eye(2) for _ in models]


def test_what_a_client_has_in_hand_is_what_it_trained() -> None:
    assert lied().held("a") is TRAINED
    assert lied().held("b") is lied().updates["b"].model


def test_alone_a_client_goes_on_from_what_it_trained() -> None:
    rule = Standalone()
    state = rule.weigh(rule.init(FACTS), FACTS, lied()).state
    assert torch.equal(rule.deliver(state, START, "a").model["w"], TRAINED["w"])


def test_cgsv_adds_the_reward_to_what_the_client_trained() -> None:
    """Weights are 1/2 in the first round; the best client gets the whole of the common step of what was sent."""
    rule = Cgsv(protocol="keep")
    weighing = rule.weigh(rule.init(FACTS), FACTS, lied())
    common = (SENT["w"] + OTHER["w"]) / 2
    assert weighing.diagnostics["reward"]["a"] == 1
    torch.testing.assert_close(weighing.state.models["a"]["w"], TRAINED["w"] + common)


def test_rffl_adds_the_reward_to_what_the_client_trained_and_bounds_that() -> None:
    rule = Rffl(gamma=0.002)
    weighing = rule.weigh(rule.init(FACTS), FACTS, lied())
    assert weighing.diagnostics["reward"]["a"] == 1
    shortened = {name: 0.002 * w / w.norm() for name, w in (("a", SENT["w"]), ("b", OTHER["w"]))}
    own = 0.002 * TRAINED["w"] / TRAINED["w"].norm()
    common = (shortened["a"] + shortened["b"]) / 2
    torch.testing.assert_close(weighing.state.models["a"]["w"], own + common, atol=1e-6, rtol=1e-3)


def test_shapfed_mixes_the_global_model_into_what_the_client_trained() -> None:
    module = torch.nn.Linear(1, 2)
    facts = replace(facts_of(module), head=("weight", "bias"))
    start = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    trained = {"weight": torch.tensor([[0.1], [0.2]]), "bias": torch.tensor([0.3, 0.4])}
    sent = {name: -5 * tensor for name, tensor in trained.items()}
    other = {name: 7 * tensor for name, tensor in trained.items()}
    rule = ShapFed(personal=True)
    round = a_round(start, {"a": sent, "b": other}, own={"a": trained})
    state = rule.weigh(rule.init(facts), facts, round).state
    model = {name: torch.full_like(tensor, 9) for name, tensor in start.items()}
    # The two steps are opposed and b's is longer: a has cosine -1 with their mean, half-similarity 0, so the floor.
    part = 1e-3
    delivered = rule.deliver(state, model, "a").model
    for name, tensor in trained.items():
        torch.testing.assert_close(delivered[name], (1 - part) * tensor + part * 9)


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_cffl_clips_what_the_client_trained_and_takes_off_what_it_sent(theta: float) -> None:
    """g = 0.01. Sent: (0.01, -0.01) clipped; b sends (0, 0.006); of two values the larger, or both, ties included."""
    rule = Cffl(mode="paper", theta=theta)
    state = rule.weigh(rule.init(FACTS), FACTS, lied(validate=validate)).state
    upload = torch.tensor([0.01, -0.01])
    total = upload + torch.tensor([0.0, 0.006])
    torch.testing.assert_close(state.models["a"]["w"], TRAINED["w"] - upload + total)
