"""The server's copy of the model: checked, adapted for the probe, and validated on held-out data if a rule needs it.

If clients exchange a part of the model, the other tensors are frozen, and the server's own values are used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.files import tensor_digest
from celm.base.text import quote
from celm.core.loss_derivatives import LossDerivatives, loss_derivatives
from celm.core.model_stack import extract_logits
from celm.live.array_layout import ArrayLayout
from celm.live.logger import log
from celm.metrics.accuracy import count_confusions
from celm.models.adapter_settings import AdapterSettings
from celm.models.adapters import adapt_for_probe
from celm.models.heads import find_head, head_keys
from celm.models.peft_names import adapter_aliases, is_unused_original, outermost_tuned_layer
from celm.models.state_dict import StateDict, get_state, load_state, to_float32
from celm.models.state_matching import tied_names
from celm.models.user_model import check_forward
from celm.rules.messages import Validation
from celm.rules.rule import Requirements

ModelOrFactory = nn.Module | Callable[[], nn.Module]
"""A module, or a function that returns one."""
_VALIDATION_BATCH_SIZE = 1000
_Layout = TypeVar("_Layout", bound=ArrayLayout[Any])


@dataclass(frozen=True)
class ServerModel:
    """The model of a federation."""

    module: nn.Module
    """The model that clients train. If `partial`, its values are those of the frozen tensors."""
    probed_module: nn.Module
    """The module to probe. It has the tensors of `module`."""
    head: tuple[str, ...]
    """Names of the tensors of the last layer."""
    adapters: AdapterSettings
    partial: bool
    """Whether clients may exchange a part of the tensors."""

    @classmethod
    def build(
        cls,
        model: ModelOrFactory,
        input_shape: tuple[int, ...],
        classes: int,
        device: str,
        head: str | None,
        adapters: AdapterSettings,
        partial: bool,
    ) -> ServerModel:
        """Copy the model and check that it maps inputs of this shape to `classes` logits."""
        module = _copy_module(model)
        if adapters.non_defaults():
            probed_module = adapt_for_probe(to_float32(module), adapters, input_shape, classes)
        else:
            probed_module = to_float32(module) if partial else module
            _check_forward(module, input_shape, classes)
        head_layer = find_head(module, classes, head)
        if head is None:
            head_layer = outermost_tuned_layer(module, head_layer)
        head_names = head_keys(module, head_layer)
        return cls(module.to(device), probed_module.to(device), head_names, adapters, partial)

    def reference(self) -> StateDict:
        """Return names, shapes and dtypes of all tensors. If `partial`, the tensors are the module's own."""
        if not self.partial:
            return get_state(self.module)
        state = self.module.state_dict()
        return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}

    def make_layout(self, layout_type: type[_Layout], initial_arrays: Mapping[str, Any]) -> _Layout:
        """Return the layout of the initial arrays; log which tensors are exchanged if it is a part of them."""
        reference = self.reference()
        if not self.partial:
            return layout_type.from_initial_arrays(initial_arrays, reference)
        aliases = adapter_aliases(self.module)
        layout = layout_type.from_partial_arrays(initial_arrays, reference, aliases, tied_names(self.module))
        log(
            INFO,
            "Clients exchange %d of %d tensors; the others are frozen",
            len(layout.names),
            len(reference),
        )
        for warning in self._exchange_warnings(layout.reference):
            log(WARNING, "\t> %s", warning)
        return layout

    def settings(self, exchanged: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what results depend on besides the exchanged tensors: adapters, and a digest of frozen tensors."""
        settings: dict[str, Any] = {}
        if self.adapters.non_defaults():
            settings["adapters"] = self.adapters.non_defaults()
        frozen = self._frozen_tensors(exchanged)
        if frozen:
            settings["frozen"] = {"tensors": len(frozen), "sha256": tensor_digest(frozen)}
        return settings

    def _exchange_warnings(self, exchanged: Mapping[str, Tensor]) -> list[str]:
        """Return warnings about tensors that are not exchanged although clients may change them."""
        trainable = {
            name
            for name, tensor in self.module.named_parameters(remove_duplicate=False)
            if tensor.requires_grad
        }
        statistics = {name for name, tensor in self.module.named_buffers() if tensor.is_floating_point()}
        frozen = self._frozen_tensors(exchanged)
        reasons = {
            "trainable in the server's model": [name for name in frozen if name in trainable],
            "a buffer, which a layer in training mode may change": [
                name for name in frozen if name in statistics
            ],
        }
        return [
            f"{quote(names[0])}{f' and {len(names) - 1} more' if names[1:] else ''}: {reason}, but not sent by clients"
            for reason, names in reasons.items()
            if names
        ]

    def _frozen_tensors(self, exchanged: Mapping[str, Tensor]) -> StateDict:
        """Return the tensors that clients do not exchange and that have an effect."""
        state = self.module.state_dict()
        return {
            name: tensor
            for name, tensor in state.items()
            if name not in exchanged and isinstance(tensor, Tensor) and not is_unused_original(name, state)
        }


def _copy_module(model: ModelOrFactory) -> nn.Module:
    module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise CelmError(
            f"model: {type(module).__name__} is neither an nn.Module nor a function that returns one"
        )
    return module.cpu()


def _check_forward(module: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    try:
        hint = 'return logits, or set output="{kind}"'
        check_forward(module, type(module).__name__, input_shape, classes, hint)
    except CelmError as error:
        embeddings = [name for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
        if error.hint is None and embeddings:
            hint = f"if inputs are tokens, set layer={embeddings[0]!r} and input_shape to its output"
            raise CelmError(str(error), hint) from error
        raise


def check_validation_data(rule: str, requirements: Requirements, validation: object) -> None:
    """Raise an error if a rule needs held-out data at the server and there is none."""
    if requirements.validation and not requirements.extra_exchange and validation is None:
        raise CelmError(
            f"rule '{rule}' needs held-out data at the server", "pass validation=(inputs, labels)"
        )


def make_validate_fn(module: nn.Module, classes: int, inputs: Tensor, labels: Tensor) -> Validation:
    """Return functions from models to confusion counts, and to derivatives of the loss, on inputs and labels.

    Inputs are `[n, *shape]` and labels `[n]`. Tensors that are missing from a model are those of the module.
    """
    if len(inputs) != len(labels) or not len(labels):
        raise CelmError(f"validation: {len(inputs)} inputs and {len(labels)} labels")
    device = next(iter(module.state_dict().values())).device

    @torch.no_grad()
    def validate(models: Sequence[StateDict]) -> list[Tensor]:
        module.eval()
        counts = []
        for model in models:
            load_state(module, {**module.state_dict(), **model})
            parts = [
                extract_logits(module(part.to(device))).argmax(dim=1).cpu()
                for part in torch.split(inputs, _VALIDATION_BATCH_SIZE)
            ]
            counts.append(count_confusions(torch.cat(parts), labels.cpu(), classes))
        return counts

    def differentiate(model: StateDict, direction: StateDict | None) -> LossDerivatives:
        data = inputs.to(device), labels.to(device)
        return loss_derivatives(module, model, *data, direction, _VALIDATION_BATCH_SIZE)

    return Validation(validate, differentiate)
