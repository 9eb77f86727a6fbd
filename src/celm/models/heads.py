"""Head, backbone and features of any `nn.Module`.

The head is the last linear layer. The backbone is all other layers. The features are the input of the head. A head is
identified by its qualified name, such as `head` or `encoder.classifier`; `""` is a module that is itself its head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from celm.base.errors import CelmError, suggest_name


def find_head(module: nn.Module, classes: int, name: str | None = None) -> str:
    """Return the qualified name of the head.

    This is `name` if given, or else the last `nn.Linear` with `classes` outputs. Last means last registered, which in
    nearly all models is the last layer of the forward pass.
    """
    if name is not None:
        return _check_head(module, classes, name)
    candidates: list[str] = [
        path
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == classes
    ]
    if not candidates:
        raise CelmError(
            f"the model has no linear layer with {classes} outputs",
            "set model.head to the name of its last layer",
        )
    return candidates[-1]


def _check_head(module: nn.Module, classes: int, name: str) -> str:
    layers = dict(module.named_modules(remove_duplicate=False))
    if name not in layers:
        candidates = [path for path, part in layers.items() if path and isinstance(_get_weight(part), Tensor)]
        raise CelmError(f"model.head: the model has no layer '{name}'", suggest_name(name, candidates))
    weight = _get_weight(layers[name])
    if weight is None:
        raise CelmError(f"model.head: layer '{name}' has no weight")
    # Rules read one row of the head per class.
    if weight.ndim == 0 or weight.shape[0] != classes:
        shape = tuple(weight.shape)
        raise CelmError(
            f"model.head: the weight of layer '{name}' is {shape}, not one row for each of {classes} classes"
        )
    return name


def _get_weight(part: nn.Module) -> Tensor | None:
    weight = getattr(part, "weight", None)
    return weight if isinstance(weight, Tensor) else None


def head_keys(module: nn.Module, head: str) -> tuple[str, ...]:
    """Return the state-dict keys of the head, in state-dict order.

    A tensor with several names (tied weights, a layer registered twice) belongs to the head under all its names. So
    head and backbone never share a tensor.
    """
    prefix = f"{head}." if head else ""
    tensors = module.state_dict(keep_vars=True)
    head_ids = {id(tensor) for key, tensor in tensors.items() if key.startswith(prefix)}
    if not head_ids:
        raise CelmError(f"model.head: layer '{head}' has no tensors")
    return tuple(key for key, tensor in tensors.items() if id(tensor) in head_ids)


def trained_keys(module: nn.Module) -> tuple[str, ...]:
    """Return the state-dict keys of the trainable parameters; a shared parameter has all its names."""
    names = module.named_parameters(remove_duplicate=False)
    return tuple(name for name, parameter in names if parameter.requires_grad)


def get_linear_head(module: nn.Module, head: str) -> nn.Linear:
    """Return the head layer, or raise an error if it is not linear, such as a convolution."""
    part = module.get_submodule(head)
    if not isinstance(part, nn.Linear):
        raise CelmError(
            f"layer '{head}' is a {type(part).__name__}; only a linear head can be replaced",
            "choose another objective or model",
        )
    return part


def replace_head(module: nn.Module, head: str, new_head: nn.Module) -> nn.Module:
    """Replace the linear head by `new_head`, which ends in a linear layer, and return the module.

    The layer is replaced in place, because a forward pass may continue after its head. A layer with several names is
    replaced under all of them. A module that is itself its head becomes `new_head`.
    """
    old_head = get_linear_head(module, head)
    adapted = new_head
    if old_head is not module:
        adapted = module
        for path, layer in list(module.named_modules(remove_duplicate=False)):
            if layer is old_head:
                parent, _, name = path.rpartition(".")
                setattr(module.get_submodule(parent), name, new_head)
    # `find_head` takes the last layer of that size, so no later layer may have the size of the head.
    new_layers = set(new_head.modules())
    if adapted.get_submodule(find_head(adapted, old_head.out_features)) not in new_layers:
        raise CelmError(
            f"layer '{head}' cannot be replaced: another layer with {old_head.out_features} outputs follows it",
            "choose another objective or model",
        )
    return adapted


def extract_features(module: nn.Module, head: str, inputs: Tensor) -> Tensor:
    """Return the features of `inputs`: `[batch, ...] -> [batch, features]`."""
    return forward_with_features(module, head, inputs)[1]


def forward_with_features(module: nn.Module, head: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and features of one forward pass. If the head is called more than once, the last call counts."""
    head_inputs: list[Tensor] = []

    def record_input(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        head_inputs[:] = [value for value in (*positional, *named.values()) if isinstance(value, Tensor)][:1]

    handle = module.get_submodule(head).register_forward_pre_hook(record_input, with_kwargs=True)
    try:
        outputs: Tensor = module(inputs)
    finally:
        handle.remove()
    if not head_inputs:
        raise CelmError(
            f"layer '{head}' is not called in the forward pass, so it is not the head",
            "set model.head to the name of the last layer",
        )
    return outputs, head_inputs[0]
