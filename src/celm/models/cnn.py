"""The paper's 5-layer CNN for CIFAR-10.

    conv 3x3 -> ReLU -> max-pool 2 -> conv 3x3 -> ReLU -> max-pool 2 -> conv 3x3 -> ReLU -> fc -> ReLU -> fc

There is no padding, batch-norm or dropout: 3x32x32 is flattened to 64x4x4 = 1024. The authors' later code calls this
network `tf_cnn`; the code of CFFL and RFFL calls it `CNNCifar_TF`. Initialisation is PyTorch's default. ReLU and
maximum commute, in values and gradients, so ReLU is applied after pooling, to an image four times smaller.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pydantic import PositiveInt
from torch import nn

from celm.base.errors import CelmError
from celm.models.registry import ModelFactory

_MIN_SIDE = 18
"""The image side that leaves one pixel after three convolutions and two poolings."""


@dataclass(frozen=True)
class Cnn(ModelFactory):
    """Three 3x3 convolutions and two dense layers, for images from 18x18 up."""

    channels: tuple[PositiveInt, PositiveInt, PositiveInt] = (32, 64, 64)
    """Output channels of the three convolutions."""
    hidden: PositiveInt = 64
    """Units of the hidden layer before the head."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(input_shape) != 3 or min(input_shape[1:]) < _MIN_SIDE:
            raise CelmError(
                f"model 'cnn' needs inputs of at least (channels, {_MIN_SIDE}, {_MIN_SIDE}), not {input_shape}",
                "use model 'mlp'",
            )
        depth, height, width = input_shape
        first, second, third = self.channels
        flat = third * _output_side(height) * _output_side(width)
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


def _output_side(side: int) -> int:
    """Return the pixels of a side after the convolutions and poolings.

    >>> _output_side(32), _output_side(28), _output_side(_MIN_SIDE)
    (4, 3, 1)
    """
    return ((side - 2) // 2 - 2) // 2 - 2
