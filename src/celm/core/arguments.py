"""Check what users pass to the pure functions. A wrong argument is one line that says which one and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.text import truncate


class ArgumentError(CelmError, ValueError, TypeError):
    """A wrong argument of a function."""


def as_tensor(value: Any, name: str) -> Tensor:
    """Return a tensor, an array or nested lists of numbers as a tensor.

    >>> as_tensor([[1.0, 2.0]], "Q").shape
    torch.Size([1, 2])
    """
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"{name} must be a tensor or an array of numbers, not {type(value).__name__}"
        ) from error


def as_evidence(value: Any) -> Tensor:
    """Return evidence Q `[N, K]` as a tensor; raise an error if an entry is negative or not a number."""
    Q = as_tensor(value, "evidence")
    if Q.ndim != 2:
        raise ArgumentError(f"evidence must be [N, K], not {list(Q.shape)}", "one row per client")
    if bool(Q.isnan().any()):
        clients = Q.isnan().any(dim=1).nonzero().flatten().tolist()
        raise ArgumentError(f"evidence is not a number: rows {clients}", "exclude these clients")
    if bool((Q < 0).any()):
        raise ArgumentError("evidence must not be negative")
    return Q


def as_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of one input; a whole number is the length of a flat input.

    >>> as_shape(64), as_shape([1, 8, 8])
    ((64,), (1, 8, 8))
    """
    sizes = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else None
    if sizes is None or not sizes or any(not _is_positive_integer(size) for size in sizes):
        raise ArgumentError(
            f"the shape of an input must be whole numbers from 1: {truncate(repr(value), 80)}",
            "as in (1, 28, 28)",
        )
    return tuple(int(size) for size in sizes)


def as_class_indices(classes: Any) -> list[int]:
    """Return the classes to probe: all of a number of classes, or the given indices."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        return list(range(classes))
    given = classes.tolist() if isinstance(classes, Tensor | np.ndarray) else classes
    indices = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if indices is None or any(not isinstance(k, int) or isinstance(k, bool) for k in indices):
        raise ArgumentError(
            f"classes must be a number of classes or a list of indices: {truncate(repr(classes), 80)}"
        )
    negative = [k for k in indices if k < 0]
    if negative:
        raise ArgumentError(f"class {negative[0]} is out of range", "classes count from 0")
    return indices


def as_models(models: Any, name: str) -> list[Any]:
    """Return several models as a list. A single model is an error: a `Sequential` would be read layer by layer."""
    if isinstance(models, nn.Module | Mapping) or not isinstance(models, Sequence):
        raise ArgumentError(
            f"{name} must be a list of models, not a single {type(models).__name__}", "write [model]"
        )
    return list(models)


def check_modules(models: Any) -> Sequence[nn.Module]:
    """Return models as a list of modules. Warn of a model with values that are not finite: it has no evidence."""
    if isinstance(models, nn.Module) or not isinstance(models, Sequence):
        raise ArgumentError(
            f"models must be a list of models, not a single {type(models).__name__}",
            "write probe([model], ...)",
        )
    for index, model in enumerate(models):
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            hint = (
                "load it into a module first: module.load_state_dict(state)"
                if isinstance(model, dict)
                else None
            )
            raise ArgumentError(f"model {index} is not a module: {kind}", hint)
        for name, tensor in model.state_dict().items():
            if (
                isinstance(tensor, Tensor)
                and tensor.is_floating_point()
                and not bool(tensor.isfinite().all())
            ):
                warnings.warn(
                    f"model {index} has values that are not finite, so it has no evidence: tensor '{name}'",
                    stacklevel=4,
                )
                break
    return cast(Sequence[nn.Module], models)


def check_output(module: nn.Module, logits: Tensor, targets: Sequence[int]) -> None:
    """Raise an error if logits cannot be maximised, or lack a class."""
    if not logits.is_floating_point():
        raise ArgumentError(
            f"the model returns {logits.dtype}, not logits", "return scores, not predicted classes"
        )
    if not logits.requires_grad:
        raise ArgumentError(
            "the logits of the model do not depend on its inputs",
            "remove detach() and no_grad() from its forward",
        )
    outputs = logits.shape[-1]
    if outputs > 1 and max(targets) >= outputs:  # one output is not a classifier: celm.core.task_check
        raise ArgumentError(f"class {max(targets)} is out of range: the model has {outputs} outputs")


def explain_embedding(module: nn.Module, error: Exception) -> None:
    """Raise an error that says what to do if a forward pass failed because the model embeds integers."""
    embeddings = [
        name for name, part in module.named_modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)
    ]
    if embeddings:
        raise ArgumentError(
            "the model takes whole numbers, such as tokens, which a probe cannot change in small steps",
            f"probe the output of its embedding: celm.audit(..., layer='{embeddings[0]}')",
        ) from error


def _is_positive_integer(value: Any) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and int(value) > 0
