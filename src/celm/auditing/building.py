"""The architecture of an audit: by name, by factory, from a Hugging Face folder, or a module in memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from celm.auditing.reading import HEADERS, parse, take_snapshot
from celm.auditing.settings import Settings
from celm.base.errors import CelmError
from celm.models import build_model, check_model_name
from celm.models.factory import make_own
from celm.models.hugging_face import build_from_folder, is_configuration


@dataclass(frozen=True)
class Built:
    """The model in eval mode on its device, and the settings with what the model itself says filled in."""

    model: nn.Module
    how: Settings
    aliases: Mapping[str, str]
    """Other names that files may have for its tensors."""


def build(how: Settings, module: nn.Module | None) -> Built:
    outputs = how.head_outputs or len(how.classes)
    aliases: Mapping[str, str] = {}
    if module is not None:
        model = copy.deepcopy(module)
    elif not how.model:
        raise CelmError(
            "an audit needs a model", "a name, package.module:factory, or a folder with a config.json"
        )
    elif is_configuration(how.model):
        found = build_from_folder(how.model, how.options)
        model, aliases = found.module, found.saved_as
        how = how.model_copy(
            update={
                "argument": how.argument or (None if how.layer else found.argument),
                "input_shape": how.input_shape or found.input_shape or (),
            }
        )
    else:
        check_model_name(how.model)
        require_shape(how)
        with torch.random.fork_rng(devices=[]):
            make = make_own if ":" in how.model else build_model
            model = make(how.model, how.options, how.input_shape, outputs)
    require_shape(how)
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise CelmError(f"the model keeps '{name}', which is not a tensor")
    if not model.state_dict():
        raise CelmError("the model has no tensors")
    try:
        model = model.to(how.device)
    except (RuntimeError, AssertionError) as error:
        raise CelmError(f"device: '{how.device}' cannot be used: {str(error).splitlines()[0]}") from error
    return Built(in_float32(model).eval(), how, aliases)


def require_shape(how: Settings) -> None:
    if not how.input_shape:
        raise CelmError("an audit needs the shape of an input", "as in --input-shape 1,28,28")


def in_float32(model: nn.Module) -> nn.Module:
    """What probes compute in: half types are for storage, since probes climb small gradients."""
    others = (torch.float16, torch.bfloat16, torch.float64)
    return model.float() if any(tensor.dtype in others for tensor in model.state_dict().values()) else model


def held_inputs(how: Settings) -> Mapping[str, Tensor]:
    """The arguments that are held, one sample of each."""
    if how.hold is None:
        return {}
    path = Path(how.hold).resolve()
    try:
        return parse(take_snapshot(path, HEADERS).content, path.suffix, HEADERS)
    except CelmError as error:
        raise CelmError(f"hold: {path} {error}") from error
