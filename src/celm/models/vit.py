"""Vision transformer, ViT-B/16 by default, from Hugging Face transformers.

Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at scale", ICLR 2021.
The paper's FedISIC model is `weights = "google/vit-base-patch16-224"` with a new head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Any

from pydantic import PositiveInt
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.text import single_line, truncate
from celm.models.registry import ModelFactory

# The probe runs many models at a time under `vmap`, and PyTorch has no batching rule for fused attention.
ATTENTION_IMPLEMENTATION = "eager"

_TRANSFORMERS_NAMES = {
    "patch_size": "patch_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
"""Setting to its name in a configuration of transformers. With `weights`, the checkpoint defines their values."""


class VisionTransformer(nn.Module):
    """A classifier of images: `[batch, channels, height, width] -> [batch, classes]` logits."""

    def __init__(self, backbone: nn.Module, head: nn.Linear, resize: tuple[int, int] | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.resize = resize

    def forward(self, images: Tensor) -> Tensor:
        if self.resize is not None:
            images = nn.functional.interpolate(images, self.resize, mode="bilinear", align_corners=False)
        tokens: Tensor = self.backbone(pixel_values=images).last_hidden_state
        logits: Tensor = self.head(tokens[:, 0])
        return logits


@dataclass(frozen=True)
class Vit(ModelFactory):
    """Vision transformer (ViT-B/16), from random or pretrained weights."""

    weights: str | None = None
    """Pretrained weights: a folder or hub name, as in `google/vit-base-patch16-224`, with a new head. None: random."""
    image_size: PositiveInt | None = None
    """Side to which inputs are resized, bilinearly, such as 224. None: no resizing."""
    patch_size: PositiveInt = 16
    """Side of a patch in pixels."""
    hidden_size: PositiveInt = 768
    """Width of the token representations."""
    layers: PositiveInt = 12
    """Number of transformer layers."""
    heads: PositiveInt = 12
    """Number of attention heads; divides `hidden_size`."""
    intermediate_size: PositiveInt = 3072
    """Width of the hidden layer in each feed-forward block."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(input_shape) != 3:
            raise CelmError(f"model 'vit' needs inputs (channels, height, width), not {input_shape}")
        depth, *sides = input_shape
        size = (sides[0], sides[1]) if self.image_size is None else (self.image_size, self.image_size)
        try:
            import transformers
        except ImportError as error:
            raise CelmError("model 'vit' needs transformers", "pip install 'celm[vit]'") from error
        with silence_transformers(transformers):
            if self.weights is None:
                model = self._build_random(transformers, depth, size, classes)
            else:
                model = self._load_pretrained(transformers, self.weights, depth, size, classes)
        return VisionTransformer(model.vit, model.classifier, None if size == tuple(sides) else size).train()

    def _build_random(self, transformers: Any, depth: int, size: tuple[int, int], classes: int) -> Any:
        if size[0] % self.patch_size or size[1] % self.patch_size:
            raise CelmError(
                f"model 'vit' cannot cut images of {_format_size(size)} into patches of {self.patch_size}",
                "set model.patch_size, or model.image_size to resize the images",
            )
        if self.hidden_size % self.heads:
            raise CelmError(
                f"setting 'model.heads': {self.heads} does not divide hidden_size {self.hidden_size}"
            )
        config = transformers.ViTConfig(
            **{key: getattr(self, setting) for setting, key in _TRANSFORMERS_NAMES.items()},
            image_size=size,
            num_channels=depth,
            num_labels=classes,
            attn_implementation=ATTENTION_IMPLEMENTATION,
        )
        return transformers.ViTForImageClassification(config)

    def _load_pretrained(
        self, transformers: Any, weights: str, depth: int, size: tuple[int, int], classes: int
    ) -> Any:
        try:
            config = transformers.AutoConfig.from_pretrained(weights)
        except Exception as error:
            raise CelmError(*self._load_error(error)) from error
        self._check_fits(config, depth, size)
        try:
            model, info = transformers.ViTForImageClassification.from_pretrained(
                weights,
                num_labels=classes,
                ignore_mismatched_sizes=True,
                attn_implementation=ATTENTION_IMPLEMENTATION,
                use_safetensors=True,  # never unpickle
                output_loading_info=True,
            )
        except Exception as error:
            raise CelmError(*self._load_error(error)) from error
        missing = [name for name in sorted(info["missing_keys"]) if not name.startswith("classifier.")]
        if missing:
            raise CelmError(
                f"model.weights: '{weights}' lacks {len(missing)} of the model's tensors, first '{missing[0]}'"
            )
        model = model.float()
        # The head is new even if the checkpoint has the same number of classes. Initialise it as transformers does.
        nn.init.normal_(model.classifier.weight, std=config.initializer_range)
        nn.init.zeros_(model.classifier.bias)
        return model

    def _check_fits(self, config: Any, depth: int, size: tuple[int, int]) -> None:
        if config.model_type != "vit":
            raise CelmError(f"model.weights: '{self.weights}' is a '{config.model_type}' model, not a 'vit'")
        for field in fields(self):
            value = getattr(self, field.name)
            key = _TRANSFORMERS_NAMES.get(field.name)
            if key is None or field.default is MISSING or value == field.default:
                continue
            actual = getattr(config, key)
            if value != actual:
                raise CelmError(
                    f"setting 'model.{field.name}' is {value}, but '{self.weights}' has {actual}",
                    "leave it out: model.weights defines it",
                )
        if config.num_channels != depth:
            raise CelmError(
                f"model.weights: '{self.weights}' needs {config.num_channels} channels, not {depth}"
            )
        side = config.image_size
        expected = (side, side) if isinstance(side, int) else tuple(side)
        if expected != size:
            raise CelmError(
                f"model.weights: '{self.weights}' needs {_format_size(expected)} pixels, not {_format_size(size)}",
                f"set model.image_size = {expected[0]} to resize them",
            )

    def _load_error(self, error: Exception) -> tuple[str, str]:
        reason = truncate(single_line(str(error)), 200)
        return (
            f"model.weights: cannot load '{self.weights}': {reason}",
            "give a folder with config.json and model.safetensors, or the name of a Hugging Face model",
        )


def _format_size(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


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
