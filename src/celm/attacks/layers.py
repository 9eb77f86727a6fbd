"""Layer names of a model, and the scaling of its tensors."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from celm.base.errors import CelmError, suggest_name
from celm.models.heads import trained_keys
from celm.models.state_dict import StateDict
from celm.rules.rule import ServerContext


def layer_keys(context: ServerContext, layer: str) -> tuple[str, ...]:
    """Return the names of a layer's trained tensors, including those of its sublayers."""
    keys = tuple(key for key in trained_keys(context.module) if key.startswith(f"{layer}."))
    if not keys:
        raise CelmError(
            f"attack.layer: the model has no trained layer '{layer}'",
            suggest_name(layer, _trained_layers(context)),
        )
    return keys


def _trained_layers(context: ServerContext) -> list[str]:
    """Return the names of layers that own trained tensors, in the order of registration."""
    return list(dict.fromkeys(key.rpartition(".")[0] for key in trained_keys(context.module)))


def layer_before_head(context: ServerContext) -> str:
    """Return the name of the last layer before the head."""
    head_layers = {key.rpartition(".")[0] for key in context.head}
    others = [layer for layer in _trained_layers(context) if layer not in head_layers]
    if not others:
        raise CelmError("attack.layer: the model has no layer before its head", "use attack 'scale_head'")
    return others[-1]


def last_norm_gain(context: ServerContext) -> str:
    """Return the name of the gain of the last normalisation layer that has one."""
    norm_types = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
    gains = [
        f"{path}.weight"
        for path, part in context.module.named_modules()
        if isinstance(part, norm_types) and part.weight is not None
    ]
    if not gains:
        raise CelmError("attack 'scale_norm': the model has no normalisation layer with a gain")
    return gains[-1]


def scale_tensors(model: StateDict, names: Collection[str], factor: float) -> StateDict:
    """Return the model with the named tensors multiplied by `factor`."""
    return {name: tensor * factor if name in names else tensor for name, tensor in model.items()}
