"""Calibrated evidence: what it is by hand, and what cannot change it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.method.calibration import (
    FLOOR,
    OWN,
    SIGN_OF_TRAINING,
    Calibration,
    calibrate,
    calibrated_evidence,
    common_noise,
)
from celm.method.evidence import scores
from celm.method.forward import forward_of
from celm.method.probe import probe
from celm.method.stacking import Stack

SHAPE = (6,)
CLASSES = 4


def model(seed: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8, bias=bias), nn.ReLU(), nn.Linear(8, CLASSES, bias=bias))


def probed(models: Sequence[nn.Module]) -> tuple[Tensor, Calibration]:
    found = probe(models, SHAPE, CLASSES, steps=30, seed=3, calibrated=True)
    assert found.calibration is not None
    return found.logits, found.calibration


def found_evidence(models: Sequence[nn.Module]) -> Tensor:
    return calibrated_evidence(*probed(models))


def test_level_and_spread_are_those_of_the_logits_on_the_same_noise() -> None:
    models = [model(1), model(2)]
    _, calibration = probed(models)
    x = common_noise(3, 1, SHAPE)[0]
    for m, one in enumerate(models):
        logits = one(x).detach()
        torch.testing.assert_close(calibration.level[m], logits.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(calibration.spread[m], logits.std(0), rtol=1e-4, atol=1e-5)
        overall = math.sqrt(float((logits.std(0) ** 2).mean()))
        assert calibration.overall[m].item() == pytest.approx(overall, rel=1e-4)


def test_gains_are_raised_logits_in_units_of_spread() -> None:
    one = model(1)
    found = probe([one], SHAPE, CLASSES, steps=30, seed=3, calibrated=True)
    assert found.calibration is not None
    risen = (one(found.inputs[0]).detach() - found.calibration.level[0]) / found.calibration.overall[0]
    for c, row in enumerate(risen.tolist()):
        own, other = row[c], max(row[:c] + row[c + 1 :])
        assert found.logits[0, c].item() == pytest.approx(max(0, min(own, (own - other) / OWN)), abs=1e-3)


@given(st.integers(0, 20), st.floats(0.3, 3))
@settings(max_examples=10, deadline=None)
def test_a_copied_row_is_evidence_of_neither_class(seed: int, factor: float) -> None:
    """Whatever it is multiplied by, two classes that rise together are not known apart."""
    one = model(seed)
    with torch.no_grad():
        for tensor in one[2].parameters():
            tensor[1] = tensor[0]
    gains, calibration = probed([one])
    assert gains[0, 0] == pytest.approx(0, abs=1e-3)
    assert gains[0, 1] == pytest.approx(0, abs=1e-3)
    with torch.no_grad():
        for tensor in one[2].parameters():
            tensor[1] = factor * tensor[0]
    gains, calibration = probed([one])
    # The smaller of the two is always below the other one.
    assert calibrated_evidence(gains, calibration)[0, 0 if factor > 1 else 1] == pytest.approx(0, abs=1e-6)


def test_by_hand() -> None:
    # Two clients; the spreads are 1, so a class stands for itself in its own units too.
    ones = torch.ones(2, 2)
    calibration = Calibration(torch.zeros(2, 2), ones, torch.ones(2))
    gains = torch.tensor([[10.0, 6.0], [1.0, 20.0]])
    # Height beside the own best: 1, 0.6 and 0.05, 1. Clarity beside max(own best, median 10): the same.
    expected = [[1.0, (0.6 - FLOOR) / (1 - FLOOR)], [0.0, 1.0]]
    torch.testing.assert_close(
        calibrated_evidence(gains, calibration), torch.tensor(expected, dtype=torch.float64)
    )


def test_a_row_that_only_looks_high_for_its_scale_does_not_count() -> None:
    # Class 1 of the first client varies three times as much on noise: a scaled row. In its own units it is low.
    spread = torch.tensor([[1.0, 3.0], [1.0, 1.0]])
    calibration = Calibration(torch.zeros(2, 2), spread, torch.tensor([math.sqrt(5), 1.0]))
    gains = torch.tensor([[10.0, 10.0], [20.0, 20.0]])
    found = calibrated_evidence(gains, calibration)
    assert found[0, 0] > 0.9
    assert found[0, 1] == 0


def test_an_untrained_model_among_trained_ones_has_no_evidence() -> None:
    calibration = Calibration(torch.zeros(3, 2), torch.ones(3, 2), torch.ones(3))
    weak = 0.99 * SIGN_OF_TRAINING
    found = calibrated_evidence(torch.tensor([[1.0, 1.0], [1.0, 1.0], [weak, weak]]), calibration)
    assert found[2].tolist() == [0, 0]
    assert scores(found).tolist() == [0.5, 0.5, 0]


def alike(seed: int, bias: bool = True) -> list[nn.Sequential]:
    """Three models whose best logits rise equally far, so that none is taken for untrained."""
    models = [model(seed + k, bias) for k in range(3)]
    gains, calibration = probed(models)
    for one, size in zip(models, gains.amax(1) * calibration.overall, strict=True):
        for name, parameter in one[2].named_parameters():
            assert name in ("weight", "bias")
            parameter.data.div_(size)
    return models


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.5, 200), st.lists(st.floats(-50, 50), min_size=CLASSES, max_size=CLASSES), st.integers(0, 9)
)
def test_scale_and_constants_of_the_head_change_nothing(
    scale: float, constants: list[float], seed: int
) -> None:
    honest = alike(seed)
    attacker = copy.deepcopy(honest[0])
    with torch.no_grad():
        attacker[2].weight.mul_(scale)  # type: ignore[operator]
        attacker[2].bias.mul_(scale).add_(torch.tensor(constants))  # type: ignore[operator]
    before, after = found_evidence(honest), found_evidence([attacker, *honest[1:]])
    torch.testing.assert_close(after, before, rtol=0, atol=2e-3)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 200), st.integers(0, 9))
def test_scale_of_any_layer_changes_nothing_without_biases(scale: float, seed: int) -> None:
    honest = alike(seed, bias=False)
    attacker = copy.deepcopy(honest[0])
    with torch.no_grad():
        attacker[0].weight.mul_(scale)  # type: ignore[operator]
    before, after = found_evidence(honest), found_evidence([attacker, *honest[1:]])
    torch.testing.assert_close(after, before, rtol=0, atol=2e-3)


@given(
    st.lists(st.lists(st.floats(-5, 90), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.floats(0, 9), min_size=3, max_size=3),
)
def test_evidence_lies_between_0_and_1_whatever_comes(gains: list[list[float]], spread: list[float]) -> None:
    rows = torch.tensor([spread] * len(gains))
    calibration = Calibration(torch.zeros_like(rows), rows, rows.square().mean(1).sqrt())
    found = calibrated_evidence(torch.tensor(gains), calibration)
    assert found.shape == (len(gains), 3)
    assert found.dtype == torch.float64
    assert bool(((found >= 0) & (found <= 1)).all())


def test_constant_and_unreadable_models_have_none_and_do_no_harm() -> None:
    constant = model(1)
    nn.init.zeros_(constant[2].weight)  # type: ignore[arg-type]
    broken = model(2)
    nn.init.constant_(broken[0].weight, math.nan)  # type: ignore[arg-type]
    good: list[nn.Module] = [model(3), model(4)]
    found = found_evidence([*good, constant, broken])
    assert found[2:].abs().sum() == 0
    torch.testing.assert_close(found[:2], found_evidence(good), rtol=0, atol=1e-6)
    assert found_evidence([constant]).abs().sum() == 0


def test_chunks_and_a_choice_of_classes_change_nothing() -> None:
    models: list[nn.Module] = [model(1), model(2), model(3)]
    whole = probe(models, SHAPE, CLASSES, steps=20, seed=3, calibrated=True)
    cut = probe(models, SHAPE, CLASSES, steps=20, seed=3, calibrated=True, chunk=1)
    torch.testing.assert_close(cut.logits, whole.logits)
    assert cut.calibration is not None
    assert whole.calibration is not None
    torch.testing.assert_close(cut.calibration.overall, whole.calibration.overall)
    some = probe(models, whole.inputs[:, 1:3], [1, 2], steps=0, seed=3, calibrated=True)
    assert some.calibration is not None
    torch.testing.assert_close(some.logits, whole.logits[:, 1:3])
    torch.testing.assert_close(some.calibration.spread, whole.calibration.spread[:, 1:3])
    torch.testing.assert_close(some.calibration.overall, whole.calibration.overall)


def test_the_three_ways_of_stacking_agree() -> None:
    states = [model(seed).state_dict() for seed in (1, 2)]
    noise = common_noise(0, 2, SHAPE)
    fast = calibrate(forward_of(Stack(model(0), states), SHAPE), noise)
    one_by_one = [calibrate(forward_of(Stack(model(0), [state]), SHAPE), noise[:1]) for state in states]
    torch.testing.assert_close(fast.spread, torch.cat([one.spread for one in one_by_one]))


@given(st.integers(0, 20), st.sampled_from([1e2, 1e4, 1e6]))
@settings(max_examples=10, deadline=None)
def test_large_constants_gain_nothing(seed: int, constant: float) -> None:
    """What float32 leaves of the rest beside them is less, never more."""
    plain, shifted = [model(seed + i) for i in range(3)], [model(seed + i) for i in range(3)]
    with torch.no_grad():
        shifted[0][2].bias += constant
    before, after = scores(found_evidence(plain)), scores(found_evidence(shifted))
    assert float(after[0]) <= float(before[0]) + 0.02


@pytest.mark.parametrize("constant", [1e8, 3.3e8, 1e20])
def test_constants_that_drown_a_model_leave_no_evidence_of_it(constant: float) -> None:
    drowned = model(1)
    with torch.no_grad():
        drowned[2].bias += constant
    gains, calibration = probed([drowned, model(2)])
    assert calibration.drowned.tolist() == [True, False]
    assert gains[0].tolist() == [0] * CLASSES
    assert calibrated_evidence(gains, calibration)[0].tolist() == [0] * CLASSES


def test_a_model_that_says_nothing_is_not_drowned() -> None:
    silent = model(1)
    with torch.no_grad():
        for tensor in silent[2].parameters():
            tensor.zero_()
    gains, calibration = probed([silent])
    assert calibration.drowned.tolist() == [False]
    assert gains[0].tolist() == [0] * CLASSES
