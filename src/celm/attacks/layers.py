"""Layers of a model by name, and models with some tensors multiplied or moved."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from celm.base.errors import CelmError, nearest
from celm.models.anatomy import trained_keys
from celm.models.state import StateDict
from celm.rules.rule import Facts


def layer_keys(federation: Facts, layer: str) -> tuple[str, ...]:
    """Names of the trained tensors of a layer, those of its parts included."""
    found = tuple(key for key in trained_keys(federation.module) if key.startswith(f"{layer}."))
    if not found:
        raise CelmError(
            f"attack.layer: the model has no layer '{layer}' that is trained",
            nearest(layer, layers(federation)),
        )
    return found


def layers(federation: Facts) -> list[str]:
    """Names of the layers that hold trained tensors of their own, in the order of registration."""
    return list(dict.fromkeys(key.rpartition(".")[0] for key in trained_keys(federation.module)))


def layer_before_head(federation: Facts) -> str:
    """The last layer that is not the head."""
    head = {key.rpartition(".")[0] for key in federation.head}
    others = [layer for layer in layers(federation) if layer not in head]
    if not others:
        raise CelmError("attack.layer: the model is nothing but its head", "use attack 'scale_head'")
    return others[-1]


def last_norm_gain(federation: Facts) -> str:
    """The name of the gain of the last normalisation layer that has one."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
    found = [
        f"{path}.weight"
        for path, part in federation.module.named_modules()
        if isinstance(part, kinds) and part.weight is not None
    ]
    if not found:
        raise CelmError("attack 'scale_norm': the model has no normalisation layer with a gain")
    return found[-1]


def scaled(model: StateDict, names: Collection[str], factor: float) -> StateDict:
    return {name: tensor * factor if name in names else tensor for name, tensor in model.items()}
