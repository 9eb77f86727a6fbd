"""The user's own model, `pkg.module:factory`: any callable that returns an `nn.Module`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from celm.base.errors import CelmError, nearest
from celm.method.stacking import logits_of


def build_own(name: str, options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Import, call and try the factory; whatever goes wrong is one line that says what."""
    with working_folder_importable():
        module = make_own(name, options, input_shape, classes)
        plain = try_out(module, name, input_shape, classes)
    return module if plain else LogitsOnly(module)


def make_own(name: str, options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """What the factory returns, untried."""
    with working_folder_importable():
        factory = find_factory(name)
        keywords = arguments(factory, name, options, {"input_shape": input_shape, "classes": classes})
        try:
            module = factory(**keywords)
        except CelmError:
            raise
        except Exception as error:
            raise CelmError(f"model '{name}' failed: {one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise CelmError(f"model '{name}' returned {type(module).__name__}, not an nn.Module")
    return module


class LogitsOnly(nn.Module):
    """A model whose output holds logits among other things, as one that returns just them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return logits_of(self.model(inputs))


@contextmanager
def working_folder_importable() -> Iterator[None]:
    """As `python -m` has it: the current folder first, for the import and the call only."""
    folder = str(Path.cwd())
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def find_factory(name: str) -> Callable[..., object]:
    path, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(path)
    except (Exception, SystemExit) as error:
        raise CelmError(f"model '{name}': cannot import '{path}': {one_line(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [known for known in dir(found) if not known.startswith("_")]
            hint = nearest(part, public)
            raise CelmError(
                f"model '{name}': '{path}' has no '{attribute}'", hint if hint.startswith("did") else None
            )
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        raise CelmError(f"model '{name}' is itself a module", "name a function or class that makes one")
    if not callable(found):
        raise CelmError(f"model '{name}' is {type(found).__name__}, not a function or class")
    return found  # type: ignore[no-any-return]


def arguments(
    factory: Callable[..., object], name: str, options: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The keywords to call with: `options`, and those of `facts` that the signature names.

    A bare `**keywords` does not count as naming them: such factories pass it on to something stricter.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # a builtin without one
        return dict(options)
    named = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    given = {key: value for key, value in facts.items() if key in named}
    for key in options:
        if key in given:
            raise CelmError(f"setting 'model.{key}' of model '{name}' is given by the data", "leave it out")
        if key not in named and not takes_any:
            settings = [known for known in named if known not in facts]
            hint = nearest(key, settings) if settings else "it has no settings"
            raise CelmError(f"unknown setting 'model.{key}' of model '{name}'", hint)
    keywords = {**given, **options}
    try:
        signature.bind(**keywords)
    except TypeError as error:
        raise CelmError(f"model '{name}': {error}", "set it as model.NAME") from error
    return keywords


def try_out(module: nn.Module, name: str, input_shape: tuple[int, ...], classes: int) -> bool:
    """One forward pass over zeros: the wrong number of outputs is found here, not after an hour.

    Says whether what the model returns is just the logits.
    """
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad():
            outputs = module(torch.zeros(2, *input_shape))
    except CelmError:
        raise
    except Exception as error:
        raise CelmError(f"model '{name}' fails on inputs {input_shape}: {one_line(error)}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    try:
        logits = logits_of(outputs)
    except TypeError as error:
        raise CelmError(f"model '{name}' must return logits, not {type(outputs).__name__}") from error
    if logits.shape != (2, classes):
        raise CelmError(
            f"model '{name}' turns inputs [2, {', '.join(map(str, input_shape))}] into "
            f"{list(logits.shape)}, not [2, {classes}]"
        )
    return logits is outputs


def one_line(error: BaseException, limit: int = 300) -> str:
    text = " ".join(str(error).split())
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shown if len(shown) <= limit else f"{shown[:limit]}..."
