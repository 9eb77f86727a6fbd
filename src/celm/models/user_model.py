"""The user's model, `pkg.module:factory` or `FILE.py:factory`: any callable that returns an `nn.Module`."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from celm.base.errors import CelmError, suggest_name
from celm.base.registry import build_component
from celm.base.text import format_exception
from celm.core.model_stack import extract_logits
from celm.core.task_check import check_logits, check_num_classes, require_logits
from celm.models.registry import ModelFactory


def build_user_model(
    name: str, options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int
) -> nn.Module:
    """Import and call the factory, and check the model by one forward pass. Any failure is a one-line `CelmError`."""
    with cwd_importable():
        module = call_factory(name, options, input_shape, classes)
        return _checked_module(module, name, input_shape, classes)


def build_given_model(
    target: Any, name: str, options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int
) -> nn.Module:
    """Build the model of an object: a registered class, a factory, or a module, which is copied."""
    if isinstance(target, type) and issubclass(target, ModelFactory):
        return build_component(target, options, "model", name).build(input_shape, classes)
    if not isinstance(target, nn.Module):
        module = _call(target, name, options, input_shape, classes)
    elif options:
        raise CelmError(
            f"unknown setting 'model.{next(iter(options))}': model '{name}' is a module without settings"
        )
    else:
        module = copy.deepcopy(target)
    return _checked_module(module, name, input_shape, classes)


def _checked_module(module: nn.Module, name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    for key, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor) and not bool(tensor.isfinite().all()):
            raise CelmError(f"model '{name}' has values that are not finite: tensor '{key}'")
    returns_logits = check_forward(module, name, input_shape, classes)
    return module if returns_logits else _LogitsOnly(module)


def call_factory(
    name: str, options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int
) -> nn.Module:
    """Return the module that the factory builds, without a forward pass."""
    with cwd_importable():
        return _call(_find_factory(name), name, options, input_shape, classes)


def _call(
    factory: Callable[..., object],
    name: str,
    options: Mapping[str, Any],
    input_shape: tuple[int, ...],
    classes: int,
) -> nn.Module:
    keywords = _factory_arguments(factory, name, options, {"input_shape": input_shape, "classes": classes})
    try:
        module = factory(**keywords)
    except CelmError:
        raise
    except (Exception, SystemExit) as error:
        raise CelmError(f"model '{name}' failed: {format_exception(error)}") from error
    if not isinstance(module, nn.Module):
        raise CelmError(f"model '{name}' returned {type(module).__name__}, not an nn.Module")
    return module


class _LogitsOnly(nn.Module):
    """Wrap a model whose output contains logits among other values, so that it returns the logits only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return extract_logits(self.model(inputs))


@contextmanager
def cwd_importable() -> Iterator[None]:
    """Put the current folder first on `sys.path` during the block, as `python -m` does."""
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


def _find_factory(name: str) -> Callable[..., object]:
    path, _, attribute = name.rpartition(":")
    if path.endswith(".py") and not Path(path).is_file():
        raise CelmError(f"model '{name}': there is no file {path}", "its path starts at the current folder")
    try:
        target: Any = _import_file(Path(path)) if path.endswith(".py") else importlib.import_module(path)
    except (Exception, SystemExit) as error:
        raise CelmError(f"model '{name}': cannot import '{path}': {format_exception(error)}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [member for member in dir(target) if not member.startswith("_")]
            hint = suggest_name(part, public)
            raise CelmError(
                f"model '{name}': '{path}' has no '{attribute}'", hint if hint.startswith("did") else None
            )
        target = getattr(target, part)
    if isinstance(target, nn.Module):
        raise CelmError(f"model '{name}' is itself a module", "name a function or class that builds one")
    if not callable(target):
        raise CelmError(f"model '{name}' is {type(target).__name__}, not a function or class")
    return target  # type: ignore[no-any-return]


def _import_file(path: Path) -> ModuleType:
    """Import a file once, with its folder on `sys.path` as when Python runs it."""
    resolved = path.resolve()
    name = f"_celm_model_{hashlib.sha256(str(resolved).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(resolved.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        with suppress(ValueError):
            sys.path.remove(str(resolved.parent))
    return module


def _factory_arguments(
    factory: Callable[..., object], name: str, options: Mapping[str, Any], data_arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keywords for the call: `options`, and those `data_arguments` that the signature names.

    `**keywords` alone does not count as naming them: such factories pass keywords on to a stricter function.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # a builtin without a signature
        return dict(options)
    parameter_names = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    data_keywords = {key: value for key, value in data_arguments.items() if key in parameter_names}
    for key in options:
        if key in data_keywords:
            raise CelmError(f"setting 'model.{key}' of model '{name}' is given by the data", "leave it out")
        if key not in parameter_names and not takes_any:
            settings = [setting for setting in parameter_names if setting not in data_arguments]
            hint = suggest_name(key, settings) if settings else "it has no settings"
            raise CelmError(f"unknown setting 'model.{key}' of model '{name}'", hint)
    keywords = {**data_keywords, **options}
    try:
        signature.bind(**keywords)
    except TypeError as error:
        raise CelmError(f"model '{name}': {error}", "set it as model.NAME") from error
    return keywords


def _check_differentiable(module: nn.Module, logits: torch.Tensor, name: str) -> None:
    """Raise CelmError if training cannot change the logits."""
    if not logits.is_floating_point():
        raise CelmError(
            f"model '{name}' returns {logits.dtype}, not logits", "return scores, not predicted classes"
        )
    if not logits.requires_grad and any(parameter.requires_grad for parameter in module.parameters()):
        raise CelmError(
            f"the logits of model '{name}' do not depend on its parameters",
            "remove detach() and no_grad() from its forward",
        )


def check_forward(
    module: nn.Module, name: str, input_shape: tuple[int, ...], classes: int, hint: str | None = None
) -> bool:
    """Run one forward pass on zeros and check the logits, before any time is spent on training.

    Return whether the model returns the logits alone. Training modes are left unchanged. `hint` says what to do about
    probabilities (see `check_logits`).
    """
    check_num_classes(classes)
    inputs = torch.zeros(2, *input_shape)
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.enable_grad():
            outputs = module(inputs)
        _check_differentiable(module, require_logits(outputs, f"model '{name}'"), name)
        logits = check_logits(module, inputs, outputs, name=f"model '{name}'", hint=hint)
    except CelmError:
        raise
    except (Exception, SystemExit) as error:
        raise CelmError(f"model '{name}' fails on inputs {input_shape}: {format_exception(error)}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    if logits.shape != (2, classes):
        raise CelmError(
            f"model '{name}' turns inputs [2, {', '.join(map(str, input_shape))}] into "
            f"{list(logits.shape)}, not [2, {classes}]"
        )
    return logits is outputs
