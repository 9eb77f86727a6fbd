"""Calibrated evidence against values on paper, and what a client cannot change it by."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.core.batched_forward import make_forward
from celm.core.calibration import (
    EVIDENCE_FLOOR,
    MARGIN,
    MIN_TRAINED_RATIO,
    CalibratedLogits,
    Calibration,
    calibrate,
    calibrated_evidence,
    shared_noise,
)
from celm.core.evidence import scores
from celm.core.model_stack import ModelStack
from celm.core.probe import probe

SHAPE = (6,)
CLASSES = 4


def model(seed: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8, bias=bias), nn.ReLU(), nn.Linear(8, CLASSES, bias=bias))


def probe_calibrated(models: Sequence[nn.Module]) -> tuple[Tensor, Calibration]:
    result = probe(models, SHAPE, CLASSES, steps=30, seed=3, transform=CalibratedLogits(3))
    assert result.measurements is not None
    return result.logits, result.measurements


def evidence_of(models: Sequence[nn.Module]) -> Tensor:
    return calibrated_evidence(*probe_calibrated(models))


def test_level_and_spread_are_those_of_the_logits_on_the_same_noise() -> None:
    models = [model(1), model(2)]
    _, calibration = probe_calibrated(models)
    x = shared_noise(3, 1, SHAPE)[0]
    for m, one in enumerate(models):
        logits = one(x).detach()
        torch.testing.assert_close(calibration.mean[m], logits.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(calibration.std[m], logits.std(0), rtol=1e-4, atol=1e-5)
        overall = math.sqrt(float((logits.std(0) ** 2).mean()))
        assert calibration.rms_std[m].item() == pytest.approx(overall, rel=1e-4)


def test_gains_are_raised_logits_in_units_of_spread() -> None:
    one = model(1)
    result = probe([one], SHAPE, CLASSES, steps=30, seed=3, transform=CalibratedLogits(3))
    assert result.measurements is not None
    standardised = (
        one(result.inputs[0]).detach() - result.measurements.mean[0]
    ) / result.measurements.rms_std[0]
    for c, row in enumerate(standardised.tolist()):
        target, runner_up = row[c], max(row[:c] + row[c + 1 :])
        assert result.logits[0, c].item() == pytest.approx(
            max(0, min(target, (target - runner_up) / MARGIN)), abs=1e-3
        )


@given(st.integers(0, 20), st.floats(0.3, 3))
@settings(max_examples=10, deadline=None)
def test_a_copied_row_is_evidence_of_neither_class(seed: int, factor: float) -> None:
    """Two classes that rise together are not evidence of either, whatever their factor."""
    one = model(seed)
    with torch.no_grad():
        for tensor in one[2].parameters():
            tensor[1] = tensor[0]
    gains, calibration = probe_calibrated([one])
    assert gains[0, 0] == pytest.approx(0, abs=1e-3)
    assert gains[0, 1] == pytest.approx(0, abs=1e-3)
    with torch.no_grad():
        for tensor in one[2].parameters():
            tensor[1] = factor * tensor[0]
    gains, calibration = probe_calibrated([one])
    # The smaller of the two is always below the other one.
    assert calibrated_evidence(gains, calibration)[0, 0 if factor > 1 else 1] == pytest.approx(0, abs=1e-6)


def test_evidence_is_the_smaller_of_height_and_clarity_above_the_floor() -> None:
    # All spreads are 1, so height and clarity have the same units.
    ones = torch.ones(2, 2)
    calibration = Calibration(torch.zeros(2, 2), ones, torch.ones(2))
    gains = torch.tensor([[10.0, 6.0], [1.0, 20.0]])
    # Height relative to the client's best: 1, 0.6 and 0.05, 1. Clarity relative to max(best, median 10): the same.
    expected = [[1.0, (0.6 - EVIDENCE_FLOOR) / (1 - EVIDENCE_FLOOR)], [0.0, 1.0]]
    torch.testing.assert_close(
        calibrated_evidence(gains, calibration), torch.tensor(expected, dtype=torch.float64)
    )


def test_a_scaled_row_does_not_count() -> None:
    # Class 1 of the first client varies three times as much on noise. In units of that spread its gain is low.
    spread = torch.tensor([[1.0, 3.0], [1.0, 1.0]])
    calibration = Calibration(torch.zeros(2, 2), spread, torch.tensor([math.sqrt(5), 1.0]))
    gains = torch.tensor([[10.0, 10.0], [20.0, 20.0]])
    result = calibrated_evidence(gains, calibration)
    assert result[0, 0] > 0.9
    assert result[0, 1] == 0


def test_an_untrained_model_among_trained_ones_has_no_evidence() -> None:
    calibration = Calibration(torch.zeros(3, 2), torch.ones(3, 2), torch.ones(3))
    weak = 0.99 * MIN_TRAINED_RATIO
    result = calibrated_evidence(torch.tensor([[1.0, 1.0], [1.0, 1.0], [weak, weak]]), calibration)
    assert result[2].tolist() == [0, 0]
    assert scores(result).tolist() == [0.5, 0.5, 0]


def equally_trained(seed: int, bias: bool = True) -> list[nn.Sequential]:
    """Return three models whose best logits rise equally far, so that none counts as untrained."""
    models = [model(seed + k, bias) for k in range(3)]
    for attempt in range(1, 20):
        gains, calibration = probe_calibrated(models)
        weak = (gains.amax(1) < 0.3).nonzero().flatten().tolist()
        if not weak:
            break
        for k in weak:  # without a clear best class, rounding would decide
            models[k] = model(seed + k + 100 * attempt, bias)
    assert not weak
    for one, size in zip(models, gains.amax(1) * calibration.rms_std, strict=True):
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
    honest = equally_trained(seed)
    attacker = copy.deepcopy(honest[0])
    with torch.no_grad():
        attacker[2].weight.mul_(scale)  # type: ignore[operator]
        attacker[2].bias.mul_(scale).add_(torch.tensor(constants))  # type: ignore[operator]
    before, after = evidence_of(honest), evidence_of([attacker, *honest[1:]])
    torch.testing.assert_close(after, before, rtol=0, atol=2e-3)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 200), st.integers(0, 9))
def test_scale_of_any_layer_changes_nothing_without_biases(scale: float, seed: int) -> None:
    honest = equally_trained(seed, bias=False)
    attacker = copy.deepcopy(honest[0])
    with torch.no_grad():
        attacker[0].weight.mul_(scale)  # type: ignore[operator]
    before, after = evidence_of(honest), evidence_of([attacker, *honest[1:]])
    torch.testing.assert_close(after, before, rtol=0, atol=2e-3)


@given(
    st.lists(st.lists(st.floats(-5, 90), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.floats(0, 9), min_size=3, max_size=3),
)
def test_evidence_is_between_0_and_1_for_any_gains(gains: list[list[float]], spread: list[float]) -> None:
    rows = torch.tensor([spread] * len(gains))
    calibration = Calibration(torch.zeros_like(rows), rows, rows.square().mean(1).sqrt())
    result = calibrated_evidence(torch.tensor(gains), calibration)
    assert result.shape == (len(gains), 3)
    assert result.dtype == torch.float64
    assert bool(((result >= 0) & (result <= 1)).all())


def test_constant_and_nonfinite_models_have_no_evidence_and_leave_the_others_theirs() -> None:
    constant = model(1)
    nn.init.zeros_(constant[2].weight)  # type: ignore[arg-type]
    broken = model(2)
    nn.init.constant_(broken[0].weight, math.nan)  # type: ignore[arg-type]
    good: list[nn.Module] = [model(3), model(4)]
    with pytest.warns(UserWarning, match="model 3 has values that are not finite.*'0.weight'"):
        result = evidence_of([*good, constant, broken])
    assert result[2:].abs().sum() == 0
    torch.testing.assert_close(result[:2], evidence_of(good), rtol=0, atol=1e-6)
    assert evidence_of([constant]).abs().sum() == 0


def test_chunks_and_a_subset_of_classes_change_nothing() -> None:
    models: list[nn.Module] = [model(1), model(2), model(3)]
    whole = probe(models, SHAPE, CLASSES, steps=20, seed=3, transform=CalibratedLogits(3))
    cut = probe(models, SHAPE, CLASSES, steps=20, seed=3, transform=CalibratedLogits(3), chunk=1)
    torch.testing.assert_close(cut.logits, whole.logits)
    assert cut.measurements is not None
    assert whole.measurements is not None
    torch.testing.assert_close(cut.measurements.rms_std, whole.measurements.rms_std)
    some = probe(models, whole.inputs[:, 1:3], [1, 2], steps=0, seed=3, transform=CalibratedLogits(3))
    assert some.measurements is not None
    torch.testing.assert_close(some.logits, whole.logits[:, 1:3])
    torch.testing.assert_close(some.measurements.std, whole.measurements.std[:, 1:3])
    torch.testing.assert_close(some.measurements.rms_std, whole.measurements.rms_std)


def test_models_calibrated_together_or_alone_agree() -> None:
    states = [model(seed).state_dict() for seed in (1, 2)]
    noise = shared_noise(0, 2, SHAPE)
    fast = calibrate(make_forward(ModelStack(model(0), states), SHAPE), noise)
    one_by_one = [
        calibrate(make_forward(ModelStack(model(0), [state]), SHAPE), noise[:1]) for state in states
    ]
    torch.testing.assert_close(fast.std, torch.cat([one.std for one in one_by_one]))


@given(st.integers(0, 20), st.sampled_from([1e2, 1e4, 1e6]))
@settings(max_examples=10, deadline=None)
def test_large_constants_gain_nothing(seed: int, constant: float) -> None:
    """Rounding next to a large constant may lose evidence but does not add any."""
    plain, shifted = [model(seed + i) for i in range(3)], [model(seed + i) for i in range(3)]
    with torch.no_grad():
        shifted[0][2].bias += constant
    before, after = scores(evidence_of(plain)), scores(evidence_of(shifted))
    assert float(after[0]) <= float(before[0]) + 0.02


@pytest.mark.parametrize("constant", [1e8, 3.3e8, 1e20])
def test_constants_beyond_float32_precision_leave_no_evidence(constant: float) -> None:
    shifted_model = model(1)
    with torch.no_grad():
        shifted_model[2].bias += constant
    gains, calibration = probe_calibrated([shifted_model, model(2)])
    assert calibration.is_degenerate.tolist() == [True, False]
    assert gains[0].tolist() == [0] * CLASSES
    assert calibrated_evidence(gains, calibration)[0].tolist() == [0] * CLASSES


def test_a_model_of_zeros_is_not_degenerate() -> None:
    zero_model = model(1)
    with torch.no_grad():
        for tensor in zero_model[2].parameters():
            tensor.zero_()
    gains, calibration = probe_calibrated([zero_model])
    assert calibration.is_degenerate.tolist() == [False]
    assert gains[0].tolist() == [0] * CLASSES
