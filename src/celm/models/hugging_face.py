"""An untrained model from a Hugging Face configuration folder: `config.json` defines everything except the weights.

Only the configuration in the folder is read. No code in the folder is run: the model class is one of transformers,
named by the configuration. Memory is allocated only if names and shapes of the tensors are those of the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.text import single_line, truncate
from celm.models.hugging_face_limits import check_config_file, forbid_downloads, limit_construction
from celm.models.state_matching import check_fit, tied_names
from celm.models.vit_backbones import ATTENTION_IMPLEMENTATION, silence_transformers

_TEXT_INPUT = "input_ids"
_EMBEDDING_INPUT = "inputs_embeds"
_DEFAULT_TOKENS = 8
"""Number of tokens in a probe input of a text model, unless the caller sets the input shape."""


@dataclass(frozen=True)
class HuggingFaceModel:
    """An untrained model, and how to call it."""

    module: nn.Module
    argument: str
    """Name of the argument that takes the inputs; for a text model, that of its embeddings."""
    input_shape: tuple[int, ...] | None
    """Shape of one input, or None if the configuration does not define it."""
    aliases: Mapping[str, str]
    """Tensor names in files of `save_pretrained` to names in memory, if they differ."""


def is_configuration_folder(name: str) -> bool:
    """Return whether `name` is a folder with a `config.json`."""
    return ":" not in name and (Path(name).expanduser() / "config.json").is_file()


def build_from_folder(
    name: str, options: Mapping[str, Any], reference: Mapping[str, Tensor]
) -> HuggingFaceModel:
    """Build the model that a folder's `config.json` describes, if it is the model of the tensors `reference`.

    `options` override fields of the configuration, such as `num_labels`.
    """
    folder = Path(name).expanduser()
    try:
        import transformers
    except ImportError as error:
        raise CelmError(f"model '{name}' needs transformers", "pip install 'celm[vit]'") from error
    with silence_transformers(transformers):
        try:
            check_config_file(folder, options)
            with forbid_downloads():
                config = transformers.AutoConfig.from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False, **options
                )
                config.dtype = torch.float32
                model_class = _find_model_class(transformers, config)
                with limit_construction(reference):
                    outline = _make_module(model_class, config)
                    check_fit(
                        reference, outline.state_dict(), tied_names(outline), _find_saved_aliases(outline)
                    )
                module = _make_module(model_class, config)
        except CelmError as error:
            raise CelmError(f"model '{name}': config.json: {error}") from error
        except Exception as error:
            reason = truncate(single_line(str(error)), 200)
            raise CelmError(f"model '{name}': cannot build a model from its config.json: {reason}") from error
    main_input = str(module.main_input_name)
    argument = _EMBEDDING_INPUT if main_input == _TEXT_INPUT else main_input
    return HuggingFaceModel(
        module, argument, _infer_input_shape(config, main_input), _find_saved_aliases(module)
    )


def _make_module(model_class: Any, config: Any) -> Any:
    return model_class._from_config(config, attn_implementation=ATTENTION_IMPLEMENTATION).float().eval()


def _find_model_class(transformers: Any, config: Any) -> Any:
    class_name = (getattr(config, "architectures", None) or [""])[0]
    model_class = getattr(transformers, class_name, None) if class_name.isidentifier() else None
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise CelmError(
            f"the configuration does not name a model of transformers: '{str(class_name)[:60]}'",
            "set architectures to a classifier, such as ViTForImageClassification",
        )
    return model_class


def _find_saved_aliases(module: nn.Module) -> dict[str, str]:
    """Return saved name to name in memory, for tensors whose two names differ.

    Since version 5, transformers saves tensors under older names. A tensor is identified by its place in its storage,
    since tensors on the meta device have no address. Experts have no alias: files have a tensor for each of them, of
    which there may be millions, and the model has one tensor for all.
    """
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return {}
    state = {name: tensor for name, tensor in module.state_dict().items() if "experts" not in name}
    names = {_storage_place(tensor): name for name, tensor in state.items() if tensor.numel()}
    saved_state = revert_weight_conversion(module, dict(state))  # type: ignore[arg-type]
    aliases = {saved: names.get(_storage_place(tensor)) for saved, tensor in saved_state.items()}
    return {saved: name for saved, name in aliases.items() if name is not None and saved not in state}


def _storage_place(tensor: Tensor) -> tuple[int, int]:
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _infer_input_shape(config: Any, main_input: str) -> tuple[int, ...] | None:
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if main_input == "pixel_values" and size and channels:
        return (channels, *((size, size) if isinstance(size, int) else tuple(size)))
    hidden = getattr(config, "hidden_size", None)
    return (_DEFAULT_TOKENS, hidden) if main_input == _TEXT_INPUT and hidden else None
