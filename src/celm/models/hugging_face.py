"""A Hugging Face configuration folder as an untrained model: `config.json` says all but the weights.

Only the configuration is read, from the folder alone, and no code that comes with it is run. The class is the one the
configuration names, if transformers itself has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from celm.base.errors import CelmError
from celm.models.vit import ATTENTION, quiet

TEXT = "input_ids"
EMBEDDED = "inputs_embeds"
TOKENS = 8
"""Length of the text that is probed where nobody says."""


@dataclass(frozen=True)
class FromFolder:
    module: nn.Module
    argument: str
    """What to call the model with; of a text model, its embeddings."""
    input_shape: tuple[int, ...] | None
    """As far as the configuration says it."""
    saved_as: Mapping[str, str]
    """Names of tensors in files of `save_pretrained` to those in memory, where they differ."""


def is_configuration(name: str) -> bool:
    return ":" not in name and (Path(name).expanduser() / "config.json").is_file()


def build_from_folder(name: str, options: Mapping[str, Any]) -> FromFolder:
    """`options` override fields of the configuration, such as `num_labels`."""
    folder = Path(name).expanduser()
    try:
        import transformers
    except ImportError as error:
        raise CelmError(f"model '{name}' needs transformers", "pip install 'celm[vit]'") from error
    with quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **options
            )
            config.dtype = torch.float32
            kind = class_of(transformers, config)
            module = kind._from_config(config, attn_implementation=ATTENTION).float().eval()
        except CelmError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise CelmError(f"model '{name}': its config.json makes no model: {reason}") from error
    takes = str(module.main_input_name)
    argument = EMBEDDED if takes == TEXT else takes
    return FromFolder(module, argument, shape_of(config, takes), saved_names(module))


def class_of(transformers: Any, config: Any) -> Any:
    named = (getattr(config, "architectures", None) or [""])[0]
    found = getattr(transformers, named, None) if named.isidentifier() else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise CelmError(
            f"the configuration names no model of transformers ('{str(named)[:60]}')",
            "architectures must be the name of a classifier, as in ViTForImageClassification",
        )
    return found


def saved_names(module: nn.Module) -> dict[str, str]:
    """Since its version 5, transformers writes older names than it has in memory; a tensor is known by its memory."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return {}
    own = module.state_dict()
    known = {tensor.data_ptr(): name for name, tensor in own.items() if tensor.numel()}
    saved = revert_weight_conversion(module, dict(own))  # type: ignore[arg-type]
    names = {name: known.get(tensor.data_ptr()) for name, tensor in saved.items()}
    return {saved: ours for saved, ours in names.items() if ours is not None and saved not in own}


def shape_of(config: Any, takes: str) -> tuple[int, ...] | None:
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if takes == "pixel_values" and size and channels:
        return (channels, *((size, size) if isinstance(size, int) else tuple(size)))
    hidden = getattr(config, "hidden_size", None)
    return (TOKENS, hidden) if takes == TEXT and hidden else None
