"""FedGELA: the geometry of its classifier, its loss by hand, and a head that never changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from celm.base.errors import CelmError
from celm.core.batched_layers import layerwise_forward
from celm.core.model_stack import ModelStack
from celm.models.averaging import weighted_mean
from celm.models.heads import extract_features, find_head, head_keys, trained_keys
from celm.models.state_dict import get_state
from celm.objectives.fedgela import FedGela, simplex_etf
from support.local_training import (
    CLASSES,
    INPUTS,
    a_round,
    linear,
    net,
    numerically,
    samples,
    softmax,
    step,
    task_of,
)


def adapted(seed: int = 0, **settings: float) -> tuple[FedGela, nn.Module]:
    objective = FedGela(**{"projection": 6, **settings})  # type: ignore[arg-type]
    return objective, objective.adapt_model(net(seed), "2")


@settings(deadline=None, max_examples=20)
@given(classes=st.integers(2, 12), more=st.integers(0, 9), seed=st.integers(0, 9))
def test_rows_are_a_simplex(classes: int, more: int, seed: int) -> None:
    torch.manual_seed(seed)
    M = simplex_etf(classes, classes + more).numpy()
    expected = np.full((classes, classes), -1 / (classes - 1))
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(M @ M.T, expected, atol=1e-12)
    np.testing.assert_allclose(M.sum(axis=0), 0, atol=1e-12)


def test_loss_by_hand_and_tested_without_scales() -> None:
    objective, module = adapted(temperature=0.5)
    x, _ = samples(4)
    labels = torch.tensor([0, 0, 0, 2])
    task = task_of(module, labels)
    M = module.get_submodule(task.head).weight.numpy()
    with torch.no_grad():
        h = extract_features(module, task.head, x).numpy()
        np.testing.assert_allclose(module(x).numpy(), h @ M.T, atol=1e-12)
    scales = np.array([3 * 3 / 4, 0, 3 * 1 / 4])
    p = softmax((h @ (scales[:, None] * M).T) / 0.5)
    expected = -np.log(p[np.arange(4), labels.numpy()]).mean()
    result = objective.loss(task, objective.start_round(task), x, labels).item()
    assert result == pytest.approx(expected, rel=1e-10)


def test_gradient_is_that_of_the_loss_clipped() -> None:
    x, y = samples()
    whole, module = adapted(temperature=5.0, clip=0)
    task = task_of(module, y)
    context = whole.start_round(task)
    result = whole.gradients(task, context, x, y)
    for gradient, slope in zip(result, numerically(whole, task, context, x, y), strict=True):
        np.testing.assert_allclose(gradient.numpy(), slope, atol=1e-6)
    size = torch.cat([gradient.flatten() for gradient in result]).norm()
    short = FedGela(projection=6, temperature=5.0, clip=float(size) / 3).gradients(task, context, x, y)
    for gradient, clipped in zip(result, short, strict=True):
        torch.testing.assert_close(clipped, gradient / 3, rtol=1e-4, atol=1e-9)


def test_the_classifier_is_the_head_and_is_not_trained() -> None:
    objective, module = adapted()
    head = find_head(module, CLASSES)
    assert head == "2.classifier"
    assert head_keys(module, head) == ("2.classifier.weight",)
    assert "2.classifier.weight" not in trained_keys(module)
    assert not objective.keeps_architecture
    before = get_state(module)
    x, y = samples()
    task = task_of(module, y)
    context = objective.start_round(task)
    for _ in range(3):
        step(objective, task, context, x, y)
    assert torch.equal(module.state_dict()["2.classifier.weight"], before["2.classifier.weight"])
    assert not torch.equal(module.state_dict()["0.weight"], before["0.weight"])


def test_averaging_leaves_the_classifier_unchanged_to_the_bit() -> None:
    objective, module = adapted()
    part = objective.server_hook(("2.classifier.weight",), trained_keys(module))
    assert part is not None
    model = get_state(module.float())
    state = part.init(model)
    merged = weighted_mean([model] * 3, [0.1, 0.2, 0.7])
    kept = part.postprocess(part.update_state(state, a_round({"a": model}, {"a": model}), merged, 3), merged)
    assert torch.equal(kept["2.classifier.weight"], model["2.classifier.weight"])
    assert kept["0.weight"] is merged["0.weight"]


def test_a_batch_of_one_uses_the_running_statistics() -> None:
    objective, module = adapted()
    x, y = samples(1)
    before = get_state(module)
    task = task_of(module, y)
    assert all(g.isfinite().all() for g in objective.gradients(task, objective.start_round(task), x, y))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(part.training for part in module.modules())


def test_it_can_be_probed_as_a_chain_of_layers() -> None:
    _, module = adapted()
    module = module.float().eval()
    fast = layerwise_forward(ModelStack(module, [get_state(module)] * 2), (INPUTS,))
    assert fast is not None
    x = samples(5)[0].float()
    torch.testing.assert_close(fast(torch.stack([x, x]))[0], module(x))


def test_fewer_dimensions_than_classes_are_refused() -> None:
    with pytest.raises(CelmError, match=r"objective\.projection"):
        FedGela(projection=2).adapt_model(net(), "2")


def test_a_linear_model_becomes_the_new_head() -> None:
    module = FedGela().adapt_model(linear(), "")
    assert find_head(module, CLASSES) == "classifier"
    assert module(samples(4)[0]).shape == (4, CLASSES)
