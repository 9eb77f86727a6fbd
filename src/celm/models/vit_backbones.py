"""Pretrained image backbones of Hugging Face transformers: ViT, DeiT and DINOv2, from a folder or the hub.

No code of the checkpoint is run, and no file is unpickled: only `config.json` and safetensors files are read. A
configuration may come from anyone. So the shapes in the weight files limit what it may describe. Weights in float16
are converted to float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.text import single_line, truncate
from celm.models.hugging_face_limits import check_config_file, forbid_downloads, limit_construction

# The probe runs many models at a time under `vmap`, and PyTorch has no batching rule for fused attention.
ATTENTION_IMPLEMENTATION = "eager"

_MODEL_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTModel", {"add_pooling_layer": False}),
    "deit": ("DeiTModel", {"add_pooling_layer": False}),
    "dinov2": ("Dinov2Model", {}),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", {}),
}
"""Model type in a configuration to its class in transformers and the arguments of the class."""
_UNUSED_TENSORS = ("mask_token",)
"""Tensors that a checkpoint may lack: they hide patches during pretraining."""
_HUB_FILES = ["config.json", "model*.safetensors", "model.safetensors.index.json"]
_HINT = "give a folder with config.json and model.safetensors, or the name of a Hugging Face model"


def load_backbone(transformers: Any, weights: str) -> Any:
    """Return the backbone of a checkpoint, in float32. Its attribute `config` describes it."""
    try:
        folder = _find_folder(weights)
        check_config_file(folder, {})
        with forbid_downloads():
            config = transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            class_name, arguments = _find_class(config)
            model_class = getattr(transformers, class_name)
            with limit_construction(_read_shapes(folder), "the weight file"):
                model_class._from_config(config, **arguments)
            backbone, info = model_class.from_pretrained(
                folder,
                config=config,
                attn_implementation=ATTENTION_IMPLEMENTATION,
                local_files_only=True,
                use_safetensors=True,  # never unpickle
                ignore_mismatched_sizes=True,  # reported below, by name
                output_loading_info=True,
                **arguments,
            )
    except CelmError as error:
        raise CelmError(f"model.weights: cannot load '{weights}': {error}") from error
    except Exception as error:
        reason = truncate(single_line(str(error)), 200)
        raise CelmError(f"model.weights: cannot load '{weights}': {reason}", _HINT) from error
    if info["mismatched_keys"]:
        name, saved, expected = min(info["mismatched_keys"])
        raise CelmError(
            f"model.weights: tensor '{name}' of '{weights}' is {list(saved)}, but its config.json describes"
            f" {list(expected)}"
        )
    missing = sorted(name for name in info["missing_keys"] if not name.endswith(_UNUSED_TENSORS))
    if missing:
        raise CelmError(
            f"model.weights: '{weights}' lacks {len(missing)} of the model's tensors, first '{missing[0]}'"
        )
    return backbone.float()


def find_blocks(backbone: Any) -> nn.ModuleList:
    """Return the transformer blocks of a backbone, in the order of the forward pass."""
    blocks: nn.ModuleList = backbone.encoder.layer if hasattr(backbone, "encoder") else backbone.layers
    return blocks


def _find_folder(weights: str) -> Path:
    """Return the folder of a checkpoint; download it if `weights` names a repository of the hub."""
    folder = Path(weights).expanduser()
    if folder.is_dir():
        for name in ("config.json", "*.safetensors"):
            if not list(folder.glob(name)):
                raise CelmError(f"the folder has no file {name}", _HINT)
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(weights, allow_patterns=_HUB_FILES))


def _find_class(config: Any) -> tuple[str, dict[str, Any]]:
    if config.model_type not in _MODEL_CLASSES:
        raise CelmError(
            f"it is a '{config.model_type}' model, not an image backbone that celm knows",
            f"one of: {', '.join(_MODEL_CLASSES)}; or name a factory of your own as --model",
        )
    return _MODEL_CLASSES[config.model_type]


def _read_shapes(folder: Path) -> dict[str, Tensor]:
    """Return the names and shapes of the tensors in the weight files, as tensors without values."""
    shapes: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                shapes[name] = torch.empty(file.get_slice(name).get_shape(), device="meta")
    return shapes


@contextmanager
def silence_transformers(transformers: Any) -> Iterator[None]:
    """Suppress the progress bar, the report about the new head, which is intended, and that of each retry."""
    from huggingface_hub.utils import logging as untyped_logging

    hub_logging: Any = untyped_logging
    logging = transformers.utils.logging
    level, had_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_level = hub_logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    try:
        yield
    finally:
        hub_logging.set_verbosity(hub_level)
        logging.set_verbosity(level)
        if had_progress_bar:
            logging.enable_progress_bar()
