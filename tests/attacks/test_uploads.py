"""Uploads of free-riders, by formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.attacks import attacks
from celm.attacks.attack import Attack, AttackContext
from celm.attacks.copy_global import CopyGlobal
from celm.attacks.predict_update import PredictUpdate
from celm.attacks.replay_delta import ReplayDelta
from celm.models.averaging import weighted_mean
from celm.rules.rule import ServerContext

State = dict[str, Tensor]


def state(shift: float, steps: int, dtype: torch.dtype = torch.float32) -> State:
    weight = torch.arange(6, dtype=torch.float32).view(2, 3).to(dtype)
    return {
        "weight": weight + shift,
        "bias": torch.full((2,), 2 * shift, dtype=dtype),
        "steps": torch.tensor(steps),
    }


def facts() -> ServerContext:
    return ServerContext(("client-0",), 2, (3,), 10, 0, nn.Linear(3, 2), ("weight", "bias"))


def upload(delivered: State, before: State | None, seed: int = 0) -> AttackContext:
    trained = {name: torch.full_like(tensor, 77) for name, tensor in delivered.items()}
    earlier = () if before is None else (before,)
    draw = torch.Generator().manual_seed(seed)
    return AttackContext(3, trained, delivered, before, draw, facts(), earlier_models=earlier)


def copied(of: State) -> State:
    return {name: tensor.clone() for name, tensor in of.items()}


def equal(one: State, other: State) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


FREE_RIDERS = [
    CopyGlobal(),
    CopyGlobal(strength=2.0),
    ReplayDelta(),
    ReplayDelta(strength=0.5),
    PredictUpdate(),
    PredictUpdate(strength=0.5, memory=1),
]


@pytest.mark.parametrize("attack", FREE_RIDERS)
def test_free_riders_do_not_train(attack: Attack) -> None:
    assert not attack.trains_in(1, 10)


@pytest.mark.parametrize("attack", FREE_RIDERS)
def test_in_its_first_round_a_free_rider_returns_the_received_model(attack: Attack) -> None:
    assert equal(attack.poison(upload(state(1, 4), None)), state(1, 4))


@pytest.mark.parametrize("attack", FREE_RIDERS)
@pytest.mark.parametrize("before", [None, state(0.5, 2)])
def test_neither_the_attack_nor_later_averaging_overwrites_the_received_model(
    attack: Attack, before: State | None
) -> None:
    delivered, past = state(1, 4), None if before is None else copied(before)
    sent = attack.poison(upload(delivered, before))
    weighted_mean([sent, state(9, 9)], [0.5, 0.5])
    assert equal(delivered, state(1, 4))
    assert before is None or equal(before, past)


@pytest.mark.parametrize("attack", FREE_RIDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_integers_shapes_and_types_are_kept(attack: Attack, dtype: torch.dtype) -> None:
    delivered = state(1, 4, dtype)
    sent = attack.poison(upload(delivered, state(0.5, 2, dtype)))
    assert list(sent) == list(delivered)
    assert sent["steps"].item() == 4
    for name, tensor in delivered.items():
        assert (sent[name].dtype, sent[name].shape) == (tensor.dtype, tensor.shape)


def test_a_plain_copy_is_a_copy() -> None:
    assert equal(CopyGlobal().poison(upload(state(1, 4), state(0.5, 2))), state(1, 4))


def test_the_disguise_is_noise_as_large_as_the_last_change() -> None:
    """Changes of .5 in six weights and -1 in two biases: a mean size of .625, times the strength."""
    delivered, before = state(1, 4), state(0.5, 2)
    before["bias"] = delivered["bias"] + 1
    sent = CopyGlobal(strength=2.0).poison(upload(delivered, before, seed=3))
    draw = torch.Generator().manual_seed(3)
    for name in ("weight", "bias"):
        expected = delivered[name] + 2 * 0.625 * torch.randn(delivered[name].shape, generator=draw)
        torch.testing.assert_close(sent[name], expected)
    again = CopyGlobal(strength=2.0).poison(upload(delivered, before, seed=3))
    other = CopyGlobal(strength=2.0).poison(upload(delivered, before, seed=4))
    assert equal(sent, again)
    assert not equal(sent, other)


def test_the_disguise_has_the_expected_spread() -> None:
    delivered, before = {"w": torch.zeros(20000)}, {"w": torch.full((20000,), 0.25)}
    sent = CopyGlobal(strength=3.0).poison(upload(delivered, before))["w"]
    assert float(sent.std()) == pytest.approx(0.75, rel=0.03)
    assert float(sent.mean()) == pytest.approx(0, abs=0.03)


def test_a_model_that_did_not_change_is_returned_without_noise() -> None:
    same = state(1, 4)
    assert equal(CopyGlobal(strength=2.0).poison(upload(same, copied(same))), same)
    assert equal(ReplayDelta().poison(upload(same, copied(same))), same)


@given(st.floats(-4, 4, width=16), st.floats(-4, 4, width=16), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_a_replay_adds_strength_times_the_last_change(now: float, past: float, strength: float) -> None:
    sent = ReplayDelta(strength=strength).poison(upload(state(now, 4), state(past, 2)))
    torch.testing.assert_close(sent["weight"], state(now + strength * (now - past), 0)["weight"])
    torch.testing.assert_close(sent["bias"], state(now + strength * (now - past), 0)["bias"])
    assert sent["steps"].item() == 4


def test_by_default_an_attack_uploads_the_trained_model() -> None:
    class Honest(Attack):
        pass

    given_upload = upload(state(1, 4), None)
    assert Honest().trains_in(1, 10)
    assert Honest().poison(given_upload) is given_upload.trained_model
    labels = torch.arange(4)
    assert torch.equal(Honest().relabel(labels, 4, torch.Generator()), labels)


@pytest.mark.parametrize("name", attacks.names())
def test_attacks_are_built_by_name(name: str) -> None:
    strength = 2 if name in ("sybil", "replicate_data") else 0.5
    built = attacks.build(name, {"client": "client-3", "strength": strength})
    assert (built.client, built.strength) == ("client-3", strength)
    assert attacks.build(name, {}).client == "client-0"


def test_a_copy_may_be_scaled() -> None:
    sent = CopyGlobal(scale=1.5, head=2.0).poison(upload({**state(1, 4), "body": torch.ones(3)}, None))
    torch.testing.assert_close(sent["weight"], 3 * state(1, 4)["weight"])
    torch.testing.assert_close(sent["body"], torch.full((3,), 1.5))
    assert sent["steps"].item() == 4


def test_a_copy_may_have_a_scaled_head_and_nothing_else_changes() -> None:
    body = torch.ones(3)
    sent = CopyGlobal(head=10.0).poison(upload({**state(1, 4), "body": body}, None))
    torch.testing.assert_close(sent["weight"], 10 * state(1, 4)["weight"])
    torch.testing.assert_close(sent["bias"], 10 * state(1, 4)["bias"])
    assert torch.equal(sent["body"], body)
