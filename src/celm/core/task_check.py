"""Refuse tasks that class evidence cannot describe: one class, one output, or outputs that are not logits.

Probabilities are found by values, not by layers: a layer may be registered and not used, or used and not registered.
Outputs look like probabilities if they sum to 1 (softmax), if their exponentials do (log-softmax), or if all are
between 0 and 1 (sigmoid). Honest logits can look so by chance, with a zero head for example. So a model is refused
only if its outputs keep the property when all its parameters are changed at random, by small and by large steps.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from celm.base.errors import CelmError
from celm.base.randomness import make_generator
from celm.core.model_stack import extract_logits

Squashing = Literal["softmax", "log-softmax", "sigmoid"]

_NUM_TRIALS, _MIN_TRIALS = 8, 3
"""Random changes of the parameters, and how many of them must give finite outputs."""
_TRIAL_INPUTS = 4
_ZERO_TENSOR_STEP = 0.1
"""Step for a tensor of zeros, which has no scale of its own."""
_SUM_TOLERANCE = 1e-4
_LOGITS_HINT = "return logits, and apply softmax or sigmoid in the loss"


def check_num_classes(classes: int) -> None:
    """Raise CelmError unless there are two classes or more."""
    if classes < 2:
        raise CelmError(
            f"{classes} class: contributions are estimated from differences between classes",
            "at least 2 classes are needed",
        )


class NotLogitsError(CelmError, TypeError):
    """The output of a model has no tensor of logits."""


def require_logits(output: Any, name: str = "the model") -> Tensor:
    """Return the logits in a model's output; raise `NotLogitsError` if it has none."""
    try:
        return extract_logits(output)
    except TypeError as error:
        raise NotLogitsError(
            f"{name} must return logits, not {type(output).__name__}",
            "return the tensor of logits, or an object or dict with `logits`",
        ) from error


def check_logits(
    module: nn.Module, inputs: Tensor, output: Any, *, name: str = "the model", hint: str | None = None
) -> Tensor:
    """Return the logits in `output`, which `module` returned for `inputs`; raise CelmError if they are not logits.

    `name` is the model in error messages. `hint` says what to do about probabilities; "{kind}" is replaced by the
    value of the setting `output`.
    """
    logits = require_logits(output, name)
    if logits.ndim < 2 or logits.shape[1:].numel() == 1:
        raise CelmError(
            f"{name} returns one output for each input, as in regression: shape {list(logits.shape)}",
            "classification needs one logit for each class",
        )
    if kind := find_squashing(module, inputs, logits):
        setting = "sigmoid" if kind == "sigmoid" else "softmax"
        raise CelmError(
            f"{name} returns probabilities ({kind}), but logits are needed",
            (hint or _LOGITS_HINT).format(kind=setting),
        )
    return logits


def find_squashing(module: nn.Module, inputs: Tensor, logits: Tensor) -> Squashing | None:
    """Return the function that squashes the outputs of a model; None if they can be logits.

    The model must be in eval mode. `logits` are its outputs for `inputs`, the first of which are used again.
    """
    kinds = output_properties(logits)
    noise = make_generator(0, "task check")
    trial_inputs = inputs[:_TRIAL_INPUTS].clone()
    num_finite = 0
    # A forward pass may draw random numbers; the caller's stream must not depend on this check.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for trial in range(_NUM_TRIALS):
            if not kinds:
                return None
            state = _changed_parameters(module, 2.0**trial, noise)
            if inputs.is_floating_point():
                shape = (_TRIAL_INPUTS, *inputs.shape[1:])
                trial_inputs = torch.randn(shape, generator=noise).to(inputs)
            outputs = extract_logits(functional_call(module, state, (trial_inputs,)))
            if bool(outputs.isfinite().all()):
                num_finite += 1
                properties = output_properties(outputs)
                kinds = [kind for kind in kinds if kind in properties]
    return kinds[0] if kinds and num_finite >= _MIN_TRIALS else None


def _changed_parameters(module: nn.Module, step: float, noise: torch.Generator) -> dict[str, Tensor]:
    """Return the parameters plus noise of `step` times their own scale."""
    changed = {}
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            scale = parameter.detach().float().square().mean().sqrt().item() or _ZERO_TENSOR_STEP
            change = torch.randn(parameter.shape, generator=noise) * (scale * step)
            changed[name] = parameter.detach() + change.to(parameter)
    return changed


def output_properties(outputs: Tensor) -> list[Squashing]:
    """Return the functions whose outputs could be these, the most specific first."""
    if outputs.ndim != 2:
        return []
    values = outputs.detach().double()
    in_unit_interval = bool(((values >= 0) & (values <= 1)).all())
    properties: dict[Squashing, bool] = {
        "softmax": in_unit_interval and _sums_to_one(values),
        "log-softmax": _sums_to_one(values.exp()),
        "sigmoid": in_unit_interval,
    }
    return [kind for kind, holds in properties.items() if holds]


def _sums_to_one(values: Tensor) -> bool:
    return bool(((values.sum(dim=1) - 1).abs() < _SUM_TOLERANCE).all())
