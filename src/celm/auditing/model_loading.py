"""The architecture of an audit: a name, a factory, a Hugging Face folder, or a module in memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from celm.auditing.checkpoint_reader import MAX_ENTRIES, MAX_OVERHEAD, parse_checkpoint, take_snapshot
from celm.auditing.settings import AuditSettings
from celm.auditing.sources import Source, global_model_error
from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.models import build_model, check_model_name
from celm.models.hugging_face import build_from_folder, is_configuration_folder
from celm.models.peft_names import adapter_aliases
from celm.models.state_dict import to_float32
from celm.models.user_model import call_factory


@dataclass(frozen=True)
class AuditedModel:
    """The model in eval mode on its device, and the settings completed from the model."""

    model: nn.Module
    settings: AuditSettings
    aliases: Mapping[str, str]
    """Other names of its tensors in files, to their names in the model."""


def build_audited_model(
    settings: AuditSettings, module: nn.Module | None, global_model: Source
) -> AuditedModel:
    """Build the model that the settings name, or copy `module`.

    A client may have written a config.json, so a model from one must first fit the tensors of `global_model`.
    """
    outputs = settings.head_outputs or len(settings.classes)
    aliases: Mapping[str, str] = {}
    if module is not None:
        model = copy.deepcopy(module)
    elif not settings.model:
        raise CelmError(
            "no model to audit", "set model to a name, package.module:factory, or a folder with a config.json"
        )
    elif is_configuration_folder(settings.model):
        hf_model = build_from_folder(settings.model, settings.options, _read_reference(global_model))
        model, aliases = hf_model.module, hf_model.aliases
        settings = settings.model_copy(
            update={
                "argument": settings.argument or (None if settings.layer else hf_model.argument),
                "input_shape": settings.input_shape or hf_model.input_shape or (),
            }
        )
    else:
        check_model_name(settings.model)
        _require_input_shape(settings)
        with torch.random.fork_rng(devices=[]):
            make = call_factory if ":" in settings.model else build_model
            model = make(settings.model, settings.options, settings.input_shape, outputs)
    _require_input_shape(settings)
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise CelmError(f"the model's state '{name}' is not a tensor")
    if not model.state_dict():
        raise CelmError("the model has no tensors")
    try:
        model = model.to(settings.device)
    except (RuntimeError, AssertionError) as error:
        raise CelmError(f"device '{settings.device}': {str(error).splitlines()[0]}") from error
    return AuditedModel(to_float32(model).eval(), settings, {**aliases, **adapter_aliases(model)})


def _read_reference(source: Source) -> Mapping[str, Tensor]:
    """Return the tensors of the global model. Its file is as large as it is: no model bounds it yet."""
    max_bytes = MAX_OVERHEAD
    try:
        if source.path is not None:
            with os_errors_as_celm_error(source.path, "read"):
                max_bytes += 2 * source.path.stat().st_size
        return source.read(max_bytes, MAX_ENTRIES).tensors
    except CelmError as error:
        raise global_model_error(source, error) from error


def _require_input_shape(settings: AuditSettings) -> None:
    if not settings.input_shape:
        raise CelmError("the shape of an input is missing", "set input_shape, as in --input-shape 1,28,28")


def read_fixed_inputs(settings: AuditSettings) -> Mapping[str, Tensor]:
    """Read the arguments that are not probed, one sample of each."""
    if settings.fixed_inputs is None:
        return {}
    path = Path(settings.fixed_inputs).resolve()
    try:
        return parse_checkpoint(take_snapshot(path, MAX_OVERHEAD).content, path.suffix, MAX_OVERHEAD)
    except CelmError as error:
        raise CelmError(f"fixed_inputs: {path}: {error}") from error
