"""Head, backbone and features of any `nn.Module`.

The head is the last linear layer, the backbone all the rest, the features what enters the head. A head is
known by its qualified name, such as `head` or `encoder.classifier`; `""` is a module that is nothing but its
head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from celm.base.errors import CelmError, nearest


def find_head(module: nn.Module, classes: int, name: str | None = None) -> str:
    """Qualified name of the head: `name` if given and fit, else the last `nn.Linear` with `classes` outputs.

    Last means in the order of registration, which is the order of the layers in all but unusual models.
    """
    if name is not None:
        return check_head(module, classes, name)
    found: list[str] = [
        path
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == classes
    ]
    if not found:
        raise CelmError(
            f"the model has no linear layer with {classes} outputs", "name its last layer by model.head"
        )
    return found[-1]


def check_head(module: nn.Module, classes: int, name: str) -> str:
    parts = dict(module.named_modules(remove_duplicate=False))
    if name not in parts:
        candidates = [path for path, part in parts.items() if path and isinstance(weight_of(part), Tensor)]
        raise CelmError(f"model.head: the model has no layer '{name}'", nearest(name, candidates))
    weight = weight_of(parts[name])
    if weight is None:
        raise CelmError(f"model.head: layer '{name}' has no weight")
    # Rules read the head row by row, one for each class.
    if weight.ndim == 0 or weight.shape[0] != classes:
        shape = tuple(weight.shape)
        raise CelmError(
            f"model.head: the weight of layer '{name}' is {shape}, not one row for each of {classes} classes"
        )
    return name


def weight_of(part: nn.Module) -> Tensor | None:
    weight = getattr(part, "weight", None)
    return weight if isinstance(weight, Tensor) else None


def head_keys(module: nn.Module, head: str) -> tuple[str, ...]:
    """State-dict keys of the head, in state-dict order.

    A tensor that is also known by another name (tied weights, a layer registered twice) belongs to the head
    under all its names, so that head and backbone never hold the same tensor.
    """
    prefix = f"{head}." if head else ""
    tensors = module.state_dict(keep_vars=True)
    own = {id(tensor) for key, tensor in tensors.items() if key.startswith(prefix)}
    if not own:
        raise CelmError(f"model.head: layer '{head}' holds no tensors")
    return tuple(key for key, tensor in tensors.items() if id(tensor) in own)


def backbone_keys(module: nn.Module, head: str) -> tuple[str, ...]:
    """State-dict keys of all but the head, in state-dict order; empty for a linear model."""
    of_head = set(head_keys(module, head))
    return tuple(key for key in module.state_dict(keep_vars=True) if key not in of_head)


def trained_keys(module: nn.Module) -> tuple[str, ...]:
    """State-dict keys of the parameters that training changes, a shared one under all its names."""
    names = module.named_parameters(remove_duplicate=False)
    return tuple(name for name, parameter in names if parameter.requires_grad)


def linear_head(module: nn.Module, head: str) -> nn.Linear:
    """The head itself, where it is a linear layer and not, say, a convolution."""
    part = module.get_submodule(head)
    if not isinstance(part, nn.Linear):
        raise CelmError(
            f"layer '{head}' is a {type(part).__name__}; only a linear head can be replaced",
            "choose another objective or model",
        )
    return part


def replace_head(module: nn.Module, head: str, part: nn.Module) -> nn.Module:
    """The module with `part`, which ends in a linear layer, in the place of its linear head; changed in place.

    The head's own place, not a wrapper around the module, as a forward may do more after its head. A layer
    known by several names is replaced under all of them; a module that is nothing but its head becomes `part`.
    """
    old = linear_head(module, head)
    adapted = part
    if old is not module:
        adapted = module
        for path, found in list(module.named_modules(remove_duplicate=False)):
            if found is old:
                parent, _, name = path.rpartition(".")
                setattr(module.get_submodule(parent), name, part)
    # The new head is found as the last of its size, so nothing of that size may follow it.
    own = set(part.modules())
    if adapted.get_submodule(find_head(adapted, old.out_features)) not in own:
        raise CelmError(
            f"layer '{head}' cannot be replaced: another with {old.out_features} outputs comes after it",
            "choose another objective or model",
        )
    return adapted


def features(module: nn.Module, head: str, inputs: Tensor) -> Tensor:
    """What enters the head for `inputs`: `[batch, ...] -> [batch, features]`."""
    return forward_with_features(module, head, inputs)[1]


def forward_with_features(module: nn.Module, head: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and features of one forward pass; of a head that is called more than once, the last call's."""
    seen: list[Tensor] = []

    def look(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen[:] = [value for value in (*positional, *named.values()) if isinstance(value, Tensor)][:1]

    handle = module.get_submodule(head).register_forward_pre_hook(look, with_kwargs=True)
    try:
        outputs: Tensor = module(inputs)
    finally:
        handle.remove()
    if not seen:
        raise CelmError(
            f"layer '{head}' is not called when the model runs, so it is not its head",
            "name its last layer by model.head",
        )
    return outputs, seen[0]
