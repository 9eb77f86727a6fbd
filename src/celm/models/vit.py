"""Vision transformer, ViT-B/16 by default, from Hugging Face transformers.

Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at scale", ICLR 2021.
The paper's FedISIC model is `weights = "google/vit-base-patch16-224"` with a fresh head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Any

from pydantic import PositiveInt
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.models.architecture import Architecture

# PyTorch has no batching rule for its fused attention, and models are probed many at a time under `vmap`.
ATTENTION = "eager"

OF_CHECKPOINT = {
    "patch_size": "patch_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
"""Our settings to transformers' names for them; with `weights`, the checkpoint decides."""


class VisionTransformer(nn.Module):
    """Images `[batch, channels, height, width]` to plain logits `[batch, classes]`."""

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
class Vit(Architecture):
    """Vision transformer, ViT-B/16 by default, from random or pretrained weights."""

    weights: str | None = None
    """None: random. A folder or a hub name, such as `google/vit-base-patch16-224`; the head is fresh."""
    image_size: PositiveInt | None = None
    """None: inputs are taken as they are. A side, such as 224: they are resized to it, bilinearly."""
    patch_size: PositiveInt = 16
    hidden_size: PositiveInt = 768
    layers: PositiveInt = 12
    heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(input_shape) != 3:
            raise CelmError(f"model 'vit' needs inputs (channels, height, width), not {input_shape}")
        depth, *sides = input_shape
        size = (sides[0], sides[1]) if self.image_size is None else (self.image_size, self.image_size)
        try:
            import transformers
        except ImportError as error:
            raise CelmError("model 'vit' needs transformers", "pip install 'celm[vit]'") from error
        with quiet(transformers):
            if self.weights is None:
                model = self.random(transformers, depth, size, classes)
            else:
                model = self.pretrained(transformers, self.weights, depth, size, classes)
        return VisionTransformer(model.vit, model.classifier, None if size == tuple(sides) else size).train()

    def random(self, transformers: Any, depth: int, size: tuple[int, int], classes: int) -> Any:
        if size[0] % self.patch_size or size[1] % self.patch_size:
            raise CelmError(
                f"model 'vit' cannot cut images of {side(size)} into patches of {self.patch_size}",
                "set model.patch_size, or model.image_size to resize the images",
            )
        if self.hidden_size % self.heads:
            raise CelmError(
                f"setting 'model.heads': {self.heads} does not divide hidden_size {self.hidden_size}"
            )
        config = transformers.ViTConfig(
            **{theirs: getattr(self, ours) for ours, theirs in OF_CHECKPOINT.items()},
            image_size=size,
            num_channels=depth,
            num_labels=classes,
            attn_implementation=ATTENTION,
        )
        return transformers.ViTForImageClassification(config)

    def pretrained(
        self, transformers: Any, weights: str, depth: int, size: tuple[int, int], classes: int
    ) -> Any:
        try:
            config = transformers.AutoConfig.from_pretrained(weights)
        except Exception as error:
            raise CelmError(*self.not_loaded(error)) from error
        self.check_fits(config, depth, size)
        try:
            model, info = transformers.ViTForImageClassification.from_pretrained(
                weights,
                num_labels=classes,
                ignore_mismatched_sizes=True,
                attn_implementation=ATTENTION,
                use_safetensors=True,  # never a pickle
                output_loading_info=True,
            )
        except Exception as error:
            raise CelmError(*self.not_loaded(error)) from error
        lost = [name for name in sorted(info["missing_keys"]) if not name.startswith("classifier.")]
        if lost:
            raise CelmError(f"model.weights: '{weights}' has no '{lost[0]}' and {len(lost) - 1} others")
        model = model.float()
        # Fresh even where the checkpoint happens to have as many classes; initialised as transformers does.
        nn.init.normal_(model.classifier.weight, std=config.initializer_range)
        nn.init.zeros_(model.classifier.bias)
        return model

    def check_fits(self, config: Any, depth: int, size: tuple[int, int]) -> None:
        if config.model_type != "vit":
            raise CelmError(f"model.weights: '{self.weights}' is a '{config.model_type}' model, not a 'vit'")
        for field in fields(self):
            chosen = getattr(self, field.name)
            theirs = OF_CHECKPOINT.get(field.name)
            if theirs is None or field.default is MISSING or chosen == field.default:
                continue
            actual = getattr(config, theirs)
            if chosen != actual:
                raise CelmError(
                    f"setting 'model.{field.name}' is {chosen}, but '{self.weights}' has {actual}",
                    "leave it out: model.weights decides it",
                )
        if config.num_channels != depth:
            raise CelmError(
                f"model.weights: '{self.weights}' needs {config.num_channels} channels, not {depth}"
            )
        theirs = config.image_size
        needed = (theirs, theirs) if isinstance(theirs, int) else tuple(theirs)
        if needed != size:
            raise CelmError(
                f"model.weights: '{self.weights}' needs {side(needed)} pixels, not {side(size)}",
                f"set model.image_size = {needed[0]} to resize them",
            )

    def not_loaded(self, error: Exception) -> tuple[str, str]:
        reason = " ".join(str(error).split())[:200]
        return (
            f"model.weights: cannot load '{self.weights}': {reason}",
            "a folder with config.json and model.safetensors, or the name of a Hugging Face model",
        )


def side(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No report that the head is newly initialised, which is meant, and no bar for reading a file."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
