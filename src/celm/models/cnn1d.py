"""A small 1-D CNN for sensor windows, spectrograms and waveforms.

    (conv 5 -> ReLU -> max-pool 2) twice -> conv 5 -> ReLU -> mean over time -> head

Inputs are `[channels, time]`. Of an image `[1, bands, time]`, the bands are the channels. An input `[time]` is one
channel. There is no batch-norm or dropout. Initialisation is PyTorch's default. ReLU and maximum commute, so ReLU is
applied after pooling.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from pydantic import PositiveInt
from torch import nn

from celm.base.errors import CelmError
from celm.models.registry import ModelFactory

_KERNEL = 5
_MIN_LENGTH = 32
"""The length that leaves one value after three convolutions and two poolings."""


@dataclass(frozen=True)
class Cnn1d(ModelFactory):
    """Three 1-D convolutions and a linear head, for sensors and sound."""

    channels: tuple[PositiveInt, PositiveInt, PositiveInt] = (32, 64, 64)
    """Output channels of the three convolutions."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if not 1 <= len(input_shape) <= 3 or input_shape[-1] < _MIN_LENGTH:
            raise CelmError(
                f"model 'cnn1d' needs inputs (channels, time) of at least {_MIN_LENGTH} steps, not {input_shape}",
                "use model 'mlp'",
            )
        depth, length = math.prod(input_shape[:-1]), input_shape[-1]
        first, second, third = self.channels
        return nn.Sequential(
            OrderedDict(
                rows=nn.Flatten(),
                series=nn.Unflatten(1, (depth, length)),
                conv1=nn.Conv1d(depth, first, _KERNEL),
                pool1=nn.MaxPool1d(2),
                relu1=nn.ReLU(),
                conv2=nn.Conv1d(first, second, _KERNEL),
                pool2=nn.MaxPool1d(2),
                relu2=nn.ReLU(),
                conv3=nn.Conv1d(second, third, _KERNEL),
                relu3=nn.ReLU(),
                mean=nn.AdaptiveAvgPool1d(1),
                flatten=nn.Flatten(),
                head=nn.Linear(third, classes),
            )
        )
