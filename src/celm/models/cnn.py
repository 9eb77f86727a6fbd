"""The paper's 5-layer CNN for CIFAR-10.

    conv 3x3 -> ReLU -> max-pool 2 -> conv 3x3 -> ReLU -> max-pool 2 -> conv 3x3 -> ReLU -> fc -> ReLU -> fc

No padding, batch-norm or dropout: 3x32x32 is flattened to 64x4x4 = 1024. The same network is `tf_cnn` of the
authors' later code and `CNNCifar_TF` of CFFL's and RFFL's; PyTorch's default initialisation. A ReLU and a maximum
commute, values and gradients alike, so the ReLU is taken of the pooled image, which is four times smaller.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pydantic import PositiveInt
from torch import nn

from celm.base.errors import CelmError
from celm.models.architecture import Architecture

SMALLEST = 18
"""The side that leaves one pixel after the three convolutions and two poolings."""


@dataclass(frozen=True)
class Cnn(Architecture):
    """Three 3x3 convolutions and two fully connected layers, for images of at least 18x18."""

    channels: tuple[PositiveInt, PositiveInt, PositiveInt] = (32, 64, 64)
    """Output channels of the three convolutions."""
    hidden: PositiveInt = 64
    """Units of the layer before the head."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST:
            raise CelmError(
                f"model 'cnn' needs inputs of at least (channels, {SMALLEST}, {SMALLEST}), not {input_shape}",
                "use model 'mlp'",
            )
        depth, height, width = input_shape
        first, second, third = self.channels
        flat = third * side_left(height) * side_left(width)
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(depth, first, 3),
                pool1=nn.MaxPool2d(2),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(first, second, 3),
                pool2=nn.MaxPool2d(2),
                relu2=nn.ReLU(),
                conv3=nn.Conv2d(second, third, 3),
                relu3=nn.ReLU(),
                flatten=nn.Flatten(),
                fc1=nn.Linear(flat, self.hidden),
                relu4=nn.ReLU(),
                head=nn.Linear(self.hidden, classes),
            )
        )


def side_left(side: int) -> int:
    """Pixels of a side after the convolutions and poolings.

    >>> side_left(32), side_left(28), side_left(SMALLEST)
    (4, 3, 1)
    """
    return ((side - 2) // 2 - 2) // 2 - 2
