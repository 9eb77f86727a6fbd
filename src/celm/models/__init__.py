"""Models by name, and what head, backbone and features are for any `nn.Module`.

Importing this package does not import torch: names are checked and listed without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError, nearest
from celm.base.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from celm.models.architecture import Architecture

__all__ = ["build_model", "check_model_name", "models", "named_by_both"]

models: Registry[Architecture] = Registry(
    "model",
    {
        "mlp": "celm.models.mlp:Mlp",
        "cnn": "celm.models.cnn:Cnn",
        "vit": "celm.models.vit:Vit",
    },
)


def check_model_name(name: str) -> str:
    """A registered name, or the form `pkg.module:factory`; what it names is not imported.

    >>> check_model_name("mlp"), check_model_name("my_package.nets:make")
    ('mlp', 'my_package.nets:make')
    """
    if ":" not in name:
        if name not in models.names():
            hint = f"{nearest(name, models.names())}, or your own as pkg.module:factory"
            raise CelmError(f"unknown model '{name}'", hint)
        return name
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for path in (module, attribute) for part in path.split(".")):
        raise CelmError(f"model {name!r} is not of the form pkg.module:factory")
    return name


def named_by_both(name: str, given: str | None, where: object) -> str:
    """The model that a file names; `given` is what the caller says it is.

    `pkg.module:factory` is code. A file may come from anybody, so it is only taken where the caller names it, too.

    >>> named_by_both("mlp", None, "a file"), named_by_both("my.nets:make", "my.nets:make", "a file")
    ('mlp', 'my.nets:make')
    """
    if given is not None and given != name:
        raise CelmError(f"{where} is of model {name[:200]!a}, not of '{given}'")
    if given is None and ":" in name:
        check_model_name(name)
        raise CelmError(
            f"{where} names code as its model, '{name[:200]}', which no file can have run",
            f"if you trust it, name it, too: --model {name[:200]}, in Python model='{name[:200]}'",
        )
    return name


def build_model(
    name: str, options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int
) -> nn.Module:
    """A freshly initialised classifier `[batch, *input_shape] -> [batch, classes]` logits.

    `name` is a registered name whose settings are `options`, or `pkg.module:factory`, which is called with
    `options` as keywords, and with `input_shape` and `classes` if it has parameters of these names.
    """
    check_model_name(name)
    if ":" in name:
        from celm.models.factory import build_own

        return build_own(name, options, input_shape, classes)
    return models.build(name, options).build(input_shape, classes)
