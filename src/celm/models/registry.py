"""Models by name: the registered factories, and the user's own as `pkg.module:factory`.

Importing this module does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError, suggest_name
from celm.base.registry import Configurable, Registry
from celm.base.text import quote

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ModelFactory(Configurable, ABC):
    """A registered model. A subclass is a frozen dataclass; its fields are settings (`model.*`)."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a freshly initialised classifier `[batch, *input_shape] -> [batch, classes]` logits."""


models: Registry[ModelFactory] = Registry(
    "model",
    {
        "mlp": "celm.models.mlp:Mlp",
        "cnn": "celm.models.cnn:Cnn",
        "vit": "celm.models.vit:Vit",
        "cnn1d": "celm.models.cnn1d:Cnn1d",
        "hf": "celm.models.text_classifier:HuggingFaceText",
    },
)


def check_model_name(name: str) -> str:
    """Return `name` if it is registered, `pkg.module:factory` or `FILE.py:factory`; nothing is imported.

    >>> check_model_name("mlp"), check_model_name("my_package.nets:make"), check_model_name("./nets.py:make")
    ('mlp', 'my_package.nets:make', './nets.py:make')
    """
    if ":" not in name:
        if name not in models.names():
            hint = (
                f"{suggest_name(name, models.names())}, or your own as pkg.module:factory or FILE.py:factory"
            )
            raise CelmError(f"unknown model '{name}'", hint)
        return name
    module, _, attribute = name.rpartition(":")
    paths = [attribute] if module.endswith(".py") else [module, attribute]
    if not all(part.isidentifier() for path in paths for part in path.split(".")):
        raise CelmError(f"model {name!r} is not of the form pkg.module:factory or FILE.py:factory")
    return name


def require_confirmed_factory(name: str, confirmed: str | None, source: object) -> str:
    """Return the model `name`, which the untrusted file `source` names, if it may be built.

    `pkg.module:factory` is code, and a file may come from anyone. So the caller must confirm it by the same name.

    >>> require_confirmed_factory("mlp", None, "a"), require_confirmed_factory("my.nets:make", "my.nets:make", "a")
    ('mlp', 'my.nets:make')
    """
    if confirmed is not None and confirmed != name:
        raise CelmError(f"{source} is of model {quote(name, 200)}, not of '{confirmed}'")
    if confirmed is None and ":" in name:
        check_model_name(name)
        raise CelmError(
            f"{source} names code as its model, which celm does not run unless you confirm it: '{name[:200]}'",
            f"if you trust it, add --model {name[:200]}, in Python model='{name[:200]}'",
        )
    return name


def build_model(
    name: str,
    options: Mapping[str, Any],
    input_shape: tuple[int, ...],
    classes: int,
    digest: str | None = None,
) -> nn.Module:
    """Build a freshly initialised classifier `[batch, *input_shape] -> [batch, classes]` logits.

    `name` is a registered name with settings `options`, `pkg.module:factory` or `FILE.py:factory`. Such a factory is
    called with `options` as keywords, and with `input_shape` and `classes` if it has parameters of these names.
    With a digest, it is an object of this process: a factory, or a module, whose values are then the initial ones.
    """
    if digest is not None:
        from celm.models.user_model import build_given_model

        return build_given_model(models.load(name, digest), name, options, input_shape, classes)
    check_model_name(name)
    if ":" in name:
        from celm.models.user_model import build_user_model

        return build_user_model(name, options, input_shape, classes)
    return models.build(name, options).build(input_shape, classes)
