"""What a model must say: how to build it for an input shape and a number of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn

from celm.base.registry import Configurable


@dataclass(frozen=True)
class Architecture(Configurable, ABC):
    """A subclass is a frozen dataclass; its fields are settings (`model.*`)."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """A classifier `[batch, *input_shape] -> [batch, classes]` logits, freshly initialised."""
