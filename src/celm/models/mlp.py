"""A stack of fully connected layers.

    x -> flatten -> (Linear -> ReLU) for each width -> Linear -> logits

The paper's FashionMNIST model is 784-128-64-10, with PyTorch's default initialisation.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from pydantic import PositiveInt
from torch import nn

from celm.models.registry import ModelFactory


@dataclass(frozen=True)
class Mlp(ModelFactory):
    """Fully connected layers with ReLU; without widths, a linear model."""

    widths: tuple[PositiveInt, ...] = (128, 64)
    """Units of each hidden layer."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        size = math.prod(input_shape)
        for i, width in enumerate(self.widths, start=1):
            layers[f"fc{i}"] = nn.Linear(size, width)
            layers[f"relu{i}"] = nn.ReLU()
            size = width
        layers["head"] = nn.Linear(size, classes)
        return nn.Sequential(layers)
