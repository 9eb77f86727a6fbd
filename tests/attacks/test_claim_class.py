"""Claims of classes without samples: what is added, by formula and by what head evidence makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from celm.attacks.attack import AttackContext
from celm.attacks.claim_class import ClaimClass
from celm.base.errors import CelmError
from celm.core.head_evidence import HeadChanges, head_evidence
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.models.state_dict import StateDict
from celm.rules.rule import ServerContext

CLASSES, FEATURES, CLAIMED = 4, 3, [0, 3]
LABELS = torch.tensor([1, 1, 2])
RECEIVED = {
    "weight": torch.arange(1.0, 13.0).reshape(CLASSES, FEATURES),
    "bias": torch.tensor([0.1, -0.2, 0.3, 0.0]),
}
HONEST = {
    "weight": RECEIVED["weight"] + torch.tensor([[-1.0, -1, 0], [2, 1, 0], [0, 1, 1], [-1, -1, -1]]) / 10,
    "bias": RECEIVED["bias"] + torch.tensor([-0.2, 0.3, 0.1, -0.2]),
}


def context(bias: bool = True) -> AttackContext:
    names = ("weight", "bias") if bias else ("weight",)
    server = ServerContext(
        ("client-0", "client-1"), CLASSES, (FEATURES,), 10, 0, nn.Linear(FEATURES, CLASSES), names
    )
    trained, received = ({name: state[name] for name in names} for state in (HONEST, RECEIVED))
    return AttackContext(1, trained, received, None, torch.Generator(), server, LABELS, received)


def added(attack: ClaimClass) -> StateDict:
    upload = attack.poison(context())
    return {name: upload[name] - HONEST[name] for name in upload}


@pytest.mark.parametrize("rows", ["shared", "grow", "bias"])
def test_sums_over_classes_stay_as_training_left_them(rows: Any) -> None:
    attack = ClaimClass(rows=rows, strength=5.0)
    for change in added(attack).values():
        assert change.sum(0).abs().max() < 1e-5
    honest, forged = (noise_of(upload) for upload in (HONEST, attack.poison(context())))
    assert torch.allclose(honest, forged, atol=1e-6)


def noise_of(upload: StateDict) -> torch.Tensor:
    weights, biases = ([state[name][None] for state in (RECEIVED, upload)] for name in ("weight", "bias"))
    return HeadChanges.between(*weights, *biases).noise


def test_rows_grow_along_the_received_ones_by_the_mean_change_of_a_row() -> None:
    change = added(ClaimClass(rows="grow", strength=2.0))
    size = 2 * (HONEST["weight"] - RECEIVED["weight"]).norm(dim=1).mean()
    units = RECEIVED["weight"] / RECEIVED["weight"].norm(dim=1, keepdim=True)
    mean = size * (units[0] + units[3]) / CLASSES
    for k in range(CLASSES):
        expected = (size * units[k] if k in CLAIMED else 0) - mean
        assert torch.allclose(change["weight"][k], expected, atol=1e-5)
    assert not change["bias"].any()


def test_biases_rise_by_the_mean_change_of_a_bias() -> None:
    change = added(ClaimClass(rows="bias", strength=3.0))
    assert torch.allclose(change["bias"], 3 * 0.2 * torch.tensor([0.5, -0.5, -0.5, 0.5]), atol=1e-6)
    assert not change["weight"].any()


@pytest.mark.parametrize(("rows", "form"), [("shared", "rows"), ("grow", "rows"), ("bias", "ball")])
def test_head_evidence_shows_the_classes_that_were_claimed(rows: Any, form: Any) -> None:
    forgery = ClaimClass(rows=rows, strength=5.0).poison(context())
    features = torch.ones(1, FEATURES)
    honest, forged = (
        head_evidence(RECEIVED, [upload], features=features, form=form)[0] for upload in (HONEST, forgery)
    )
    assert forged[CLAIMED].sum() > honest[CLAIMED].sum() + 0.1


def test_partners_move_rows_in_the_same_direction() -> None:
    changes = [added(ClaimClass(client=name))["weight"] for name in ("client-0", "client-1")]
    assert torch.equal(*changes)


def federation(**attack: Any) -> Federation:
    tables = {
        "dataset": {"name": "digits", "limit": 40},
        "split": {"name": "pls", "clients": 4},
        "model": {"name": "mlp", "widths": [6]},
        "run": {"rounds": 1, "workers": 0},
        "attack": {"name": "claim_class", **attack},
    }
    return build_federation(resolve_defaults(Experiment.parse(tables)))


def test_both_partners_attack_and_others_do_not() -> None:
    attackers = federation(client="client-0", partner="client-2").attacks
    assert {name: attack.client for name, attack in attackers.items()} == {
        "client-0": "client-0",
        "client-2": "client-2",
    }


def test_bad_settings_are_named() -> None:
    with pytest.raises(CelmError, match=r"attack\.partner: unknown client 'client-9'"):
        federation(partner="client-9")
    with pytest.raises(CelmError, match=r"attack\.classes: unknown class 10"):
        federation(classes=[10])
    with pytest.raises(CelmError, match="head has no bias"):
        ClaimClass(rows="bias").check(context(bias=False).server_context, LABELS)
    with pytest.raises(CelmError, match="has samples of every class"):
        ClaimClass().check(context().server_context, torch.arange(CLASSES))
