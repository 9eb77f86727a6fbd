"""Adapters of real models: one function from inputs to logits, as a probe needs it.

    probed x -> bounds -> normalisation -> the model with its other arguments fixed, or its part after a layer
             -> logits among other outputs -> logits from probabilities -> [batch, outputs]

Bounds use a sigmoid, x = low + (high - low) σ(z): the probe moves freely in z. It starts at noise around zero, the
middle of the bounds. If a model ends in an `nn.Sigmoid` or `nn.Softmax` layer, that layer is removed. Otherwise
probabilities are converted to logits, which loses what float32 has rounded to 1 (logits above 16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError, suggest_name
from celm.base.randomness import make_generator
from celm.base.text import format_exception
from celm.core.task_check import check_logits, check_num_classes, output_properties, require_logits
from celm.models.adapter_settings import AdapterSettings

_SQUASHING_LAYERS = {"sigmoid": (nn.Sigmoid,), "softmax": (nn.Softmax, nn.LogSoftmax)}
_TRIAL_BATCH = 4
"""Inputs of the trial forward pass."""
_TENSOR_TABLES = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")
"""Attributes in which an `nn.Module` keeps its tensors and layers."""


@dataclass(frozen=True)
class _Adapter:
    """Calls a model with probed inputs and returns its logits."""

    model: nn.Module
    settings: AdapterSettings
    output_kind: str
    fixed_inputs: Mapping[str, Tensor]
    """The arguments that are not probed, one sample of each."""

    def __call__(self, inputs: Tensor) -> Tensor:
        x = inputs
        if self.settings.bounds is not None:
            low, high = self.settings.bounds
            x = low + (high - low) * torch.sigmoid(x)
        if self.settings.mean:
            mean, std = (
                torch.tensor(values, dtype=x.dtype, device=x.device).view(-1, *(1 for _ in x.shape[2:]))
                for values in (self.settings.mean, self.settings.std)
            )
            x = (x - mean) / std
        logits = require_logits(self._call_model(x))
        if self.output_kind == "sigmoid":
            return torch.logit(logits, eps=6e-8)
        return logits.clamp_min(1e-38).log() if self.output_kind == "softmax" else logits

    def _call_model(self, x: Tensor) -> Any:
        fixed_inputs = {
            name: sample.to(x.device).expand(x.shape[0], *sample.shape)
            for name, sample in self.fixed_inputs.items()
        }
        if self.settings.layer is not None:
            return self._call_from_layer(self.settings.layer, x, fixed_inputs)
        if self.settings.argument is not None:
            return self.model(**{self.settings.argument: x}, **fixed_inputs)
        return self.model(x)

    def _call_from_layer(self, layer: str, x: Tensor, fixed_inputs: Mapping[str, Tensor]) -> Any:
        """Run the model with `x` in place of the layer's output. The input of the model does not matter."""

        is_called = False

        def replace_output(_: nn.Module, __: Any, output: Any) -> Tensor:
            nonlocal is_called
            is_called = True
            if not isinstance(output, Tensor) or output.shape != x.shape:
                actual = list(output.shape[1:]) if isinstance(output, Tensor) else type(output).__name__
                raise CelmError(
                    f"layer '{layer}': output of shape {actual}, input_shape is {list(x.shape[1:])}"
                )
            return x

        handle = self.model.get_submodule(layer).register_forward_hook(replace_output)
        tokens = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
        try:
            if fixed_inputs:
                output = self.model(**fixed_inputs)
            elif self.settings.argument:
                output = self.model(**{self.settings.argument: tokens})
            else:
                output = self.model(tokens)
        finally:
            handle.remove()
        if not is_called:
            raise CelmError(f"layer '{layer}' is not called in the forward pass", "name an embedding layer")
        return output


class _AdaptedModel(nn.Module):
    """A model that is called by an adapter. It shares the model's tensors and layers, under the same names."""

    def __init__(self, adapter: _Adapter) -> None:
        super().__init__()
        # One attribute, with a name that no layer has: attributes hide layers of the same name.
        self._celm_adapter = adapter
        for table in _TENSOR_TABLES:
            self.__dict__[table] = getattr(adapter.model, table)

    def forward(self, inputs: Tensor) -> Tensor:
        return self._celm_adapter(inputs)


def _strip_squashing_layer(model: nn.Module, output_kind: str) -> bool:
    """Remove the model's last layer if it squashes logits; return whether the model now returns logits."""
    if output_kind == "logits":
        return True
    squashing = [
        name
        for name, part in model.named_modules()
        if name and isinstance(part, _SQUASHING_LAYERS[output_kind])
    ]
    leaves = [name for name, part in model.named_modules() if name and not list(part.children())]
    if not squashing or leaves[-1] != squashing[-1]:
        return False
    parent, _, name = squashing[-1].rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Identity())
    return True


def adapt_for_probe(
    model: nn.Module,
    settings: AdapterSettings,
    shape: tuple[int, ...],
    classes: int,
    *,
    head_outputs: int | None = None,
    fixed_inputs: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return the module to probe, after a trial forward pass. A model that needs no adapter is returned as it is.

    The module shares the tensors of `model`, under the same names. `model` is put into eval mode, and loses a last
    layer that turns logits into probabilities.
    """
    check_num_classes(classes)
    if settings.layer is not None and settings.layer not in dict(model.named_modules()):
        raise CelmError(
            f"layer: the model has no layer '{settings.layer}'",
            suggest_name(settings.layer, dict(model.named_modules())),
        )
    if settings.mean and len(settings.mean) not in (1, shape[0]):
        raise CelmError(
            f"mean and std: {len(settings.mean)} numbers, but inputs {shape} have {shape[0]} channels"
        )
    returns_logits = settings.output is None or _strip_squashing_layer(model, settings.output)
    adapter = _Adapter(model.eval(), settings, "logits", fixed_inputs or {})
    output = _run_trial_forward(_AdaptedModel(adapter), settings, shape, classes, head_outputs, seed)
    if not returns_logits:
        adapter = replace(adapter, output_kind=_find_conversion(str(settings.output), output))
    if settings.non_defaults().keys() <= {"output"} and adapter.output_kind == "logits":
        with torch.no_grad():
            if isinstance(model(torch.zeros(1, *shape, device=output.device)), Tensor):
                return model
    return _AdaptedModel(adapter)


def _run_trial_forward(
    module: nn.Module,
    settings: AdapterSettings,
    shape: tuple[int, ...],
    classes: int,
    head_outputs: int | None,
    seed: int,
) -> Tensor:
    """Run one forward pass on noise, so that a model that does not match the settings is one clear error.

    Unless the settings say what the model returns, outputs that are not logits are refused.
    """
    device = next(iter(module.state_dict().values())).device
    noise = torch.randn(_TRIAL_BATCH, *shape, generator=make_generator(seed, "trial")).to(device)
    try:
        with torch.no_grad():
            output: Tensor = module.eval()(noise)
        if settings.output is None:
            check_logits(module, noise, output, hint="set output={kind}")
    except CelmError:
        raise
    except Exception as error:
        tokens = f"layer={settings.layer!r}: the model is called with {shape[0]} tokens, all 0"
        raise CelmError(
            f"the model fails on inputs of shape {shape}: {format_exception(error)}",
            tokens if settings.layer is not None else None,
        ) from error
    if output.ndim != 2 or output.shape[0] != _TRIAL_BATCH or output.shape[1] < classes:
        raise CelmError(
            f"the model returns shape {list(output.shape)} for inputs {[_TRIAL_BATCH, *shape]}, "
            f"expected {[_TRIAL_BATCH, head_outputs or classes]}"
        )
    return output


def _find_conversion(output_kind: str, outputs: Tensor) -> str:
    """Return how to make logits of a model's outputs; raise CelmError if they are not what the settings say."""
    properties = output_properties(outputs)
    if "sigmoid" in properties:  # between 0 and 1, as the outputs of a softmax are, too
        return output_kind
    if output_kind == "softmax" and "log-softmax" in properties:
        return "logits"  # up to a constant for each input, which is the same for all classes
    low, high = outputs.aminmax()
    raise CelmError(
        f"output={output_kind}: the model returns values from {low:.3g} to {high:.3g}, which are not probabilities",
        "leave out `output` if they are logits",
    )
