"""Head evidence against gradients on paper, other implementations of its formulas, and federations with known data."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import celm
from celm.base.errors import CelmError
from celm.core.head_evidence import (
    HeadChanges,
    HeadForm,
    ball_claims,
    choose_form,
    head_evidence,
    peer_agreement,
    row_claims,
)
from celm.data.sources.digits import Digits

K, D = 5, 8
Head = dict[str, Tensor]
_Floats = NDArray[np.float64]


def softmax_step(
    features: _Floats, labels: NDArray[np.int64], weight: _Floats, bias: _Floats
) -> tuple[_Floats, _Floats]:
    """Return the change of a head by one full-batch step of softmax regression, sample by sample in numpy."""
    weight_change, bias_change = np.zeros_like(weight), np.zeros_like(bias)
    for h, label in zip(features, labels, strict=True):
        logits = weight @ h + bias
        p = np.exp(logits - logits.max())
        p /= p.sum()
        error = np.eye(len(bias))[label] - p
        weight_change += 0.3 * np.outer(error, h) / len(labels)
        bias_change += 0.3 * error / len(labels)
    return weight_change, bias_change


def one_step(labels: list[int], seed: int = 0, signed: bool = False) -> tuple[Head, Head]:
    """Return a delivered and a trained head of a client with such labels."""
    rng = np.random.default_rng(seed)
    weight, bias = 0.1 * rng.normal(size=(K, D)), 0.1 * rng.normal(size=K)
    features = rng.normal(1.0, 0.5, size=(len(labels), D)) if signed else rng.random((len(labels), D))
    changes = softmax_step(features, np.array(labels), weight, bias)
    before = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
    return before, {name: before[name] + torch.from_numpy(c) for name, c in zip(before, changes, strict=True)}


def without_bias(state: Head) -> Head:
    return {"weight": state["weight"]}


def claims(form: HeadForm, before: Head, after: Head) -> Tensor:
    return head_evidence(before, [after], form=form, features=torch.ones(1, D))[0]


@pytest.mark.parametrize("form", ["ball", "rows", "inversion"])
@pytest.mark.parametrize("labels", [[2], [0, 0, 0], [1, 3], [0, 0, 0, 4], [2, 3, 4, 4]])
def test_after_a_step_of_softmax_regression_only_held_classes_are_claimed(
    form: HeadForm, labels: list[int]
) -> None:
    for seed in range(5):
        found = claims(form, *one_step(labels, seed))
        unheld = [c for c in range(K) if c not in labels]
        assert found[unheld].tolist() == [0] * len(unheld)
        assert found.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("labels", [[2], [1, 3], [0, 0, 0, 4]])
def test_ball_claims_only_held_classes_if_features_are_signed(labels: list[int]) -> None:
    for seed in range(5):
        found = claims("ball", *one_step(labels, seed, signed=True))
        assert {c for c in range(K) if found[c] > 0} <= set(labels)
        assert found.sum().item() == pytest.approx(1)


def test_ball_recovers_a_residual_on_paper() -> None:
    # Class 0 rises. Classes 1 and 2 fall with features (1, 0) and (1, 4): m = (1, 2), r = 2 for both, |m| = √5.
    weight = torch.tensor([[[2.0, 4.0], [-1.0, 0.0], [-1.0, -4.0]]])
    bias = torch.tensor([[2.0, -1.0, -1.0]])
    found = ball_claims(HeadChanges.between(0 * weight, weight, 0 * bias, bias))
    assert found.tolist() == [[1, 0, 0]]  # 2 / √5 < 1
    wide = torch.tensor([[[2.0, 4.0], [-1.0, 1.0], [-1.0, -5.0]]])
    q = torch.tensor([2.0, 3 / math.sqrt(5) - 1, 3 / math.sqrt(5) - 1], dtype=torch.float64)
    found = ball_claims(HeadChanges.between(0 * wide, wide, 0 * bias, bias))
    torch.testing.assert_close(found[0], q / q.sum())


def test_rows_are_the_positive_parts_of_centred_rows() -> None:
    weight = torch.tensor([[[3.0, -1.0], [-1.0, 2.0], [-2.0, -1.0]]])
    found = row_claims(HeadChanges.between(0 * weight, weight))[0]
    assert found.tolist() == pytest.approx([0.6, 0.4, 0], abs=1e-5)
    assert found[2].item() == 0


def test_inversion_recovers_the_label_proportions_of_equal_features() -> None:
    # With equal features for all samples, g_c = η (π_c - p_c) holds with p at the delivered head for a small step.
    rng = np.random.default_rng(1)
    labels = np.array([0] * 6 + [1] * 4)
    weight, bias = 0.1 * rng.normal(size=(K, D)), 0.1 * rng.normal(size=K)
    changes = softmax_step(np.ones((10, D)), labels, weight, bias)
    before = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
    after = {
        name: before[name] + 1e-3 * torch.from_numpy(change)
        for name, change in zip(before, changes, strict=True)
    }
    expected = torch.tensor([0.6, 0.4, 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(claims("inversion", before, after), expected, atol=1e-3, rtol=0)
    assert abs(claims("ball", before, after)[0].item() - 0.6) > 0.05  # which the other form does not


def random_changes(seed: int, clients: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, bias = draw(clients, K, D), draw(clients, K)
    centred = draw(clients, K, D), draw(clients, K)
    changes = [change - change.mean(1, keepdim=True) for change in centred]
    return weight, weight + changes[0], bias, bias + changes[1]


def evidence_of(arrays: tuple[Tensor, ...], form: HeadForm) -> Tensor:
    before, after, bias_before, bias_after = arrays
    delivered = [{"weight": w, "bias": b} for w, b in zip(before, bias_before, strict=True)]
    trained = [{"weight": w, "bias": b} for w, b in zip(after, bias_after, strict=True)]
    return head_evidence(delivered, trained, form=form, features=torch.ones(1, D))


forms = st.sampled_from(["ball", "rows", "inversion"])


@given(st.integers(0, 10_000), forms)
@settings(max_examples=40, deadline=None)
def test_claims_are_on_the_simplex(seed: int, form: HeadForm) -> None:
    Q = evidence_of(random_changes(seed), form)
    assert Q.shape == (3, K)
    assert Q.dtype == torch.float64
    assert bool((Q >= 0).all())
    totals = Q.sum(dim=1)
    torch.testing.assert_close(totals, totals.round(), atol=1e-12, rtol=0)


@given(st.integers(0, 10_000), st.sampled_from(["ball", "rows"]), st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_a_larger_update_claims_no_more(seed: int, form: HeadForm, factor: float) -> None:
    before, after, bias, bias_after = random_changes(seed)
    scaled = (before, before + factor * (after - before), bias, bias + factor * (bias_after - bias))
    torch.testing.assert_close(
        evidence_of(scaled, form), evidence_of((before, after, bias, bias_after), form), atol=1e-9, rtol=0
    )


@given(st.integers(0, 10_000), forms, st.permutations(range(K)))
@settings(max_examples=40, deadline=None)
def test_permuted_classes_have_permuted_claims(seed: int, form: HeadForm, order: list[int]) -> None:
    arrays = random_changes(seed)
    permuted = tuple(array[:, order] for array in arrays)
    torch.testing.assert_close(
        evidence_of(permuted, form), evidence_of(arrays, form)[:, order], atol=1e-9, rtol=0
    )


def test_the_column_sums_recover_the_level_of_known_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 10, 2000, generator=generator) * torch.tensor([0.1, 1.0, 3.0])[:, None, None]
    levels = HeadChanges.between(torch.zeros_like(noise), noise).noise
    torch.testing.assert_close(levels, torch.tensor([0.1, 1, 3], dtype=torch.float64), rtol=0.05, atol=0)


def test_noise_is_subtracted_from_the_residual() -> None:
    """A client with one class and 64 features: without the subtraction, noise would claim the other classes."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(64, generator=generator, dtype=torch.float64)
    bias = torch.full((10,), -0.1, dtype=torch.float64)
    bias[0] = 0.9
    weight = torch.outer(bias, features)

    def noise(level: float, *shape: int) -> Tensor:
        return level * torch.randn(*shape, generator=generator, dtype=torch.float64)

    false_claims, uncorrected = 0, 0
    for _ in range(20):
        noisy = (weight + noise(0.07, 10, 64))[None], (bias + noise(0.07, 10))[None]
        changes = HeadChanges.between(torch.zeros(1, 10, 64), noisy[0], torch.zeros(1, 10), noisy[1])
        false_claims += int((ball_claims(changes)[0, 1:] > 0).sum())
        exact = HeadChanges(changes.weight, changes.bias, torch.zeros(1))
        uncorrected += int((ball_claims(exact)[0, 1:] > 0).sum())
    assert 2 * false_claims < uncorrected, (false_claims, uncorrected)


def test_unchanged_and_nonfinite_updates_have_no_claims() -> None:
    before, after = one_step([1, 3])
    broken = {**after, "bias": torch.full((K,), torch.nan, dtype=torch.float64)}
    found = head_evidence(before, [after, before, broken])
    assert found.sum(dim=1).tolist() == pytest.approx([1, 0, 0])
    assert head_evidence(before, [before, broken]).sum().item() == 0


def test_excluded_clients_have_no_claims() -> None:
    before, after = one_step([1, 3])
    found = head_evidence(before, [after, after], exclude=torch.tensor([True, False]))
    assert found.sum(dim=1).tolist() == pytest.approx([0, 1])


def test_the_head_is_found_in_modules_and_state_dicts_or_named() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    trained = copy.deepcopy(module)
    trained[2].load_state_dict({n: t + torch.rand(t.shape) for n, t in module[2].state_dict().items()})
    found = head_evidence(module, [trained])
    assert torch.equal(found, head_evidence(module.state_dict(), [trained.state_dict()]))
    assert torch.equal(found, head_evidence([module], [trained], head="2"))
    assert torch.equal(found, head_evidence(module[2], [trained[2]], head=""))
    assert torch.equal(found, celm.head_evidence(module, [trained]))


def test_the_form_follows_from_the_head() -> None:
    before, after = one_step([0, 0, 1])
    nonnegative = torch.rand(20, D)
    assert torch.equal(head_evidence(before, [after])[0], claims("ball", before, after))
    frozen_bias = {**after, "bias": before["bias"]}
    for pair in ((without_bias(before), without_bias(after)), (before, frozen_bias)):
        found = head_evidence(pair[0], [pair[1]], features=nonnegative)
        assert found[0, 2:].tolist() == [0, 0, 0]
        with pytest.raises(CelmError, match=r"no bias.*features can be negative.*calibrated"):
            head_evidence(pair[0], [pair[1]], features=nonnegative - 0.5)
        with pytest.raises(CelmError, match=r"no bias.*pass features"):
            head_evidence(pair[0], [pair[1]])


def test_a_form_that_the_head_does_not_allow_is_refused() -> None:
    for form in ("ball", "inversion"):
        with pytest.raises(CelmError, match=f"form={form}"):
            choose_form(False, torch.ones(1, 1), form)
    with pytest.raises(CelmError, match=r"form=rows.*form=ball"):
        choose_form(True, -torch.ones(1, 1), "rows")
    with pytest.raises(CelmError, match="unknown form 'cone'"):
        choose_form(True, None, "cone")  # type: ignore[arg-type]


def test_wrong_arguments_are_errors_that_name_them() -> None:
    before, after = one_step([1])
    with pytest.raises(CelmError, match="2 delivered models for 1 updates"):
        head_evidence([before, before], [after])
    with pytest.raises(CelmError, match="1 delivered models for 0 updates"):
        head_evidence(before, [])
    with pytest.raises(CelmError, match="agreement"):
        head_evidence(before, [after], agreement=-1.0)
    with pytest.raises(CelmError, match="exclude"):
        head_evidence(before, [after], exclude=torch.tensor([True, False]))
    with pytest.raises(CelmError, match=r"'fc\.weight'"):
        head_evidence(before, [after], head="fc")
    with pytest.raises(CelmError, match=r"'weight' of a model is \[5, 3\]"):
        head_evidence(before, [{**after, "weight": torch.zeros(K, 3)}])
    with pytest.raises(CelmError, match="'weight' of a model is missing"):
        head_evidence(before, [{"bias": after["bias"]}])
    with pytest.raises(CelmError, match="no matrix named 'weight'"):
        head_evidence({"gain": torch.ones(2)}, [{"gain": torch.ones(2)}])
    with pytest.raises(CelmError, match=r"'weight' is \[1, 4\]"):
        head_evidence(nn.Linear(4, 1), [nn.Linear(4, 1)])
    with pytest.raises(CelmError, match="not list"):
        head_evidence(before, [[1.0]])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"updates": nn.Sequential(nn.Linear(4, 5))},
            "updates must be a list of models, not a single Sequential",
        ),
        ({"delivered": 3}, "delivered must be a list of models, not a single int"),
        ({"features": "ReLU"}, "features must be a tensor"),
        ({"exclude": "north"}, "exclude must be a tensor"),
        ({"agreement": "2"}, "agreement must be a number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_of_a_wrong_type_are_errors_that_name_them(changed: dict[str, Any], expected: str) -> None:
    before, after = one_step([1])
    with pytest.raises(CelmError, match=expected):
        head_evidence(**{"delivered": before, "updates": [after], **changed})


def test_lists_of_numbers_are_taken_as_tensors() -> None:
    before, after = one_step([1])
    plain = head_evidence(before, [after, after], form="rows", features=torch.ones(1, 2))
    listed = head_evidence(before, [after, after], form="rows", features=[[1.0, 1.0]], exclude=[True, False])  # type: ignore[arg-type]
    assert torch.equal(listed[0], torch.zeros(K, dtype=torch.float64))
    assert torch.equal(listed[1], plain[1])


def agreement_by_loops(G: _Floats, f: _Floats, delivered: _Floats) -> _Floats:
    """Return v by the formula, one pair of clients at a time."""

    def direction(v: _Floats) -> _Floats:
        return np.asarray(v / np.linalg.norm(v))

    common = direction(np.sum([direction(np.maximum(0, -rows).sum(axis=0)) for rows in G], axis=0))
    v = np.zeros_like(f)
    for i in range(len(G)):
        for c in range(f.shape[1]):
            deltas = []
            for j in range(len(G)):
                basis, _ = np.linalg.qr(np.stack([delivered[j, c], common], axis=1))
                deltas.append(direction(G[j, c] - basis @ (basis.T @ G[j, c])))
            peers = [j for j in range(len(G)) if j != i]
            agreed = sum(f[j, c] * max(0.0, float(deltas[i] @ deltas[j])) for j in peers)
            v[i, c] = (0.1 + agreed) / (0.1 + sum(f[j, c] for j in peers)) if f[i, c] >= 1e-3 else 0
    return v


def test_agreement_equals_its_formula_pair_by_pair() -> None:
    before, after, *_ = random_changes(3, clients=4)
    changes = HeadChanges.between(before, after)
    f = torch.rand(4, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f[1, 2] = 0
    found = peer_agreement(changes, f, before)
    expected = agreement_by_loops(changes.weight.numpy(), f.numpy(), before.numpy())
    torch.testing.assert_close(found, torch.from_numpy(expected))


def test_agreement_is_optional_and_leaves_a_sole_holder_its_claims() -> None:
    before, first = one_step([0, 0, 1], seed=1)
    _, second = one_step([0, 1, 1], seed=1)
    _, sole = one_step([4], seed=1)
    updates = [first, second, sole]
    plain, gated = head_evidence(before, updates), head_evidence(before, updates, agreement=2.0)
    assert torch.equal(plain, head_evidence(before, updates, agreement=0.0))
    torch.testing.assert_close(gated[2], plain[2])
    assert bool((gated <= plain + 1e-12).all())


def train(module: nn.Module, inputs: Tensor, labels: Tensor, adam: bool = False) -> nn.Module:
    """Train a copy for two epochs."""
    trained = copy.deepcopy(module)
    optimiser: torch.optim.Optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.5)
    if adam:
        optimiser = torch.optim.Adam(trained.parameters(), lr=0.003)
    generator = torch.Generator().manual_seed(len(labels))
    for _ in range(2):
        for batch in torch.split(torch.randperm(len(labels), generator=generator), 32):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(trained(inputs[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimiser.step()
    return trained


HELD = [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 0], [6, 0, 1, 5], [7, 8, 9]]
"""Classes of each client of digits; the last one is a Maverick."""


@pytest.fixture(scope="module", params=[nn.ReLU, nn.Tanh])
def digits_round(request: pytest.FixtureRequest) -> tuple[nn.Module, list[nn.Module]]:
    """A delivered model, and the models of five clients after local training on digits."""
    data = Digits().load()
    inputs, labels = data.train_inputs.flatten(1), data.train_labels
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(inputs.shape[1], 32), request.param(), nn.Linear(32, 10))
    updates = []
    for i, held in enumerate(HELD):  # the second client uses Adam
        rows = torch.isin(labels, torch.tensor(held)) & (torch.arange(len(labels)) % len(HELD) == i)
        updates.append(train(module, inputs[rows], labels[rows], adam=i == 1))
    return module, updates


def test_column_sums_vanish_after_local_training(
    digits_round: tuple[nn.Module, list[nn.Module]],
) -> None:
    module, updates = digits_round
    for update in [updates[0], *updates[2:]]:  # Adam divides each entry by its own size
        change = update[2].weight - module[2].weight  # type: ignore[index]
        assert change.sum(dim=0).abs().max() < 1e-5 < 1e-2 < change.abs().max()


def test_on_digits_unheld_classes_are_not_claimed_and_mavericks_and_free_riders_are_found(
    digits_round: tuple[nn.Module, list[nn.Module]],
) -> None:
    module, updates = digits_round
    Q = celm.head_evidence(module, [*updates, module])
    for row, held in zip(Q, HELD, strict=False):
        assert [c for c in range(10) if row[c] > 0 and c not in held] == []
    found = celm.scores(Q)
    assert int(found.argmax()) == 4  # the Maverick
    assert found[5].item() == 0  # returned the model that it was sent
    assert celm.shares(Q)[4, 7:].tolist() == pytest.approx([1, 1, 1])


def test_a_scaled_head_gains_nothing_on_digits(digits_round: tuple[nn.Module, list[nn.Module]]) -> None:
    module, updates = digits_round
    delivered = module.state_dict()
    states = [update.state_dict() for update in updates]
    larger = {name: delivered[name] + 10 * (tensor - delivered[name]) for name, tensor in states[0].items()}
    plain, raised = (
        celm.scores(head_evidence(module, [first, *states[1:]])) for first in (states[0], larger)
    )
    torch.testing.assert_close(plain, raised, atol=1e-3, rtol=0)
