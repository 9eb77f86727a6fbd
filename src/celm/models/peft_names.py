"""Names in models of the library `peft`: adapters on a frozen model.

`get_peft_model_state_dict` leaves out the name of the adapter: `lora_A.weight` is `lora_A.default.weight` in memory,
and `classifier.weight` is `classifier.modules_to_save.default.weight`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from torch import nn


def adapter_aliases(module: nn.Module) -> dict[str, str]:
    """Return the names of the active adapter's tensors in `peft` files to their names in memory, if they differ.

    A tensor is identified by its memory address. The result is empty for other models.
    """
    configs = getattr(module, "peft_config", None)
    if "peft" not in sys.modules or not isinstance(configs, dict) or not configs:
        return {}
    from peft import get_peft_model_state_dict

    state = module.state_dict()
    names = {(tensor.data_ptr(), tensor.shape): name for name, tensor in state.items() if tensor.numel()}
    saved = get_peft_model_state_dict(
        module, adapter_name=_active_adapter(module, configs), save_embedding_layers=False
    )
    matched = {name: names.get((tensor.data_ptr(), tensor.shape)) for name, tensor in saved.items()}
    return {saved: ours for saved, ours in matched.items() if ours is not None and saved not in state}


def _active_adapter(module: Any, configs: dict[str, Any]) -> str:
    active = getattr(module, "active_adapter", None)
    return active if isinstance(active, str) and active in configs else next(iter(configs))


def outermost_tuned_layer(module: nn.Module, layer: str) -> str:
    """Return the layer that an adapter wraps around `layer`, or `layer` if there is none.

    An adapted head has several linear layers, such as `head.base_layer` and `head.lora_B.default`; this is `head`.
    """
    parts = layer.split(".")
    ancestors = [".".join(parts[:count]) for count in range(1, len(parts))]
    for path in ancestors:
        if isinstance(getattr(module.get_submodule(path), "base_layer", None), nn.Module):
            return path
    return layer


def is_unused_original(name: str, names: Collection[str]) -> bool:
    """Return whether a tensor belongs to a layer that a trained copy replaces: its values have no effect.

    >>> names = ["head.original_module.bias", "head.modules_to_save.default.bias"]
    >>> [is_unused_original(name, names) for name in names]
    [True, False]
    """
    layer, original, _ = name.rpartition("original_module.")
    return bool(original) and any(other.startswith(f"{layer}modules_to_save.") for other in names)
