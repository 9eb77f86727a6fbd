"""Vision transformer: ViT-B/16 by default, or a pretrained ViT, DeiT or DINOv2, from Hugging Face transformers.

Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at scale", ICLR 2021.
The paper's FedISIC model is `weights = "google/vit-base-patch16-224"` with a new head.

With `trainable`, the first blocks are a frozen stage (celm.models.staged):

    frozen(x)  = tokens [n, 1 + patches, d] after the last frozen block; with `head`, the normalised class token [n, d]
    trained(t) = head(norm(blocks(t))[:, 0])

Position embeddings of a checkpoint are interpolated to the size of the images, as transformers does it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.models.registry import ModelFactory
from celm.models.staged import StagedModel
from celm.models.vit_backbones import (
    ATTENTION_IMPLEMENTATION,
    find_blocks,
    load_backbone,
    silence_transformers,
)

_TRANSFORMERS_NAMES = {
    "patch_size": "patch_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
"""Setting to its name in a configuration of transformers. With `weights`, the checkpoint defines their values."""
_SQUARE_ONLY = ("dinov2", "dinov2_with_registers")
"""Model types that interpolate from a square of patches, unless images are square and have the checkpoint's size."""


class VisionTransformer(nn.Module):
    """A classifier of images: `[batch, channels, height, width] -> [batch, classes]` logits."""

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        resize: tuple[int, int] | None,
        interpolate: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.resize = resize
        self.interpolate = interpolate

    def forward(self, images: Tensor) -> Tensor:
        options = {"interpolate_pos_encoding": True} if self.interpolate else {}
        tokens: Tensor = self.backbone(pixel_values=_resize(images, self.resize), **options).last_hidden_state
        logits: Tensor = self.head(tokens[:, 0])
        return logits


class _FirstBlocks(nn.Module):
    """The frozen stage: images to tokens, or to the normalised class token if there is a `norm`."""

    def __init__(self, model: VisionTransformer, blocks: list[nn.Module], norm: nn.Module | None) -> None:
        super().__init__()
        self.embeddings: Any = model.backbone.embeddings
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.resize = model.resize
        self.interpolate = model.interpolate

    def forward(self, images: Tensor) -> Tensor:
        options = {"interpolate_pos_encoding": True} if self.interpolate else {}
        tokens: Tensor = self.embeddings(_resize(images, self.resize), **options)
        tokens = _apply_blocks(self.blocks, tokens)
        return tokens if self.norm is None else self.norm(tokens[:, 0])


class _LastBlocks(nn.Module):
    """The trained stage: tokens to logits."""

    def __init__(self, blocks: list[nn.Module], norm: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = head

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = _apply_blocks(self.blocks, tokens)
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits


class _Head(nn.Module):
    """The trained stage if it is the head alone."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        return logits


@dataclass(frozen=True)
class Vit(ModelFactory):
    """Vision transformer: ViT-B/16, or a pretrained ViT, DeiT or DINOv2."""

    weights: str | None = None
    """Pretrained weights: a folder or hub name, as in `google/vit-base-patch16-224`, with a new head. None: random."""
    trainable: Annotated[str, Field(pattern=r"^(all|head|last:[1-9]\d{0,3})$")] = "all"
    """Trained layers: `all`; `last:2`: the last two blocks, the last norm and the head; `head`. The others are frozen,
    are run once for each image, and are not exchanged (`run.cache_frozen`)."""
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
        resize = None if size == tuple(sides) else size
        with silence_transformers(transformers):
            if self.weights is None:
                model = self._build_random(transformers, depth, size, classes)
                transformer = VisionTransformer(model.vit, model.classifier, resize)
            else:
                backbone = load_backbone(transformers, self.weights)
                interpolate = self._check_fits(backbone.config, depth, size)
                transformer = VisionTransformer(
                    backbone, _make_head(backbone.config, classes), resize, interpolate
                )
        return self._freeze(transformer).train()

    def _freeze(self, model: VisionTransformer) -> nn.Module:
        """Return the model with its frozen stage, if it has one."""
        if self.trainable == "all":
            return model
        backbone: Any = model.backbone
        blocks, norm = list(find_blocks(backbone)), backbone.layernorm
        if self.trainable == "head":
            return StagedModel(_FirstBlocks(model, blocks, norm), _Head(model.head))
        count = int(self.trainable.removeprefix("last:"))
        if count > len(blocks):
            raise CelmError(
                f"setting 'model.trainable': {self.trainable}, but the model has {len(blocks)} blocks"
            )
        first = len(blocks) - count
        return StagedModel(
            _FirstBlocks(model, blocks[:first], None), _LastBlocks(blocks[first:], norm, model.head)
        )

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

    def _check_fits(self, config: Any, depth: int, size: tuple[int, int]) -> bool:
        """Check settings and data against a checkpoint; return whether its position embeddings are interpolated."""
        for field in fields(self):
            value = getattr(self, field.name)
            key = _TRANSFORMERS_NAMES.get(field.name)
            if key is None or field.default is MISSING or value == field.default:
                continue
            actual = getattr(config, key, None)
            if value != actual:
                defined = "does not have it" if actual is None else f"has {actual}"
                raise CelmError(
                    f"setting 'model.{field.name}' is {value}, but '{self.weights}' {defined}",
                    "leave it out: model.weights defines it",
                )
        if config.num_channels != depth:
            raise CelmError(
                f"model.weights: '{self.weights}' needs {config.num_channels} channels, not {depth}"
            )
        patch, original = _as_sides(config.patch_size), _as_sides(config.image_size)
        if size[0] % patch[0] or size[1] % patch[1]:
            raise CelmError(
                f"model.weights: '{self.weights}' cannot cut images of {_format_size(size)} into patches of"
                f" {_format_size(patch)}",
                f"set model.image_size to a multiple of {patch[0]} to resize the images",
            )
        if original[0] != original[1] and (size != original or config.model_type in _SQUARE_ONLY):
            raise CelmError(
                f"model.weights: '{self.weights}' is for images of {_format_size(original)}, and only position"
                " embeddings of square images can be interpolated",
                "choose other weights",
            )
        # The DINOv2 models interpolate without being asked.
        return size != original and config.model_type not in _SQUARE_ONLY


def _apply_blocks(blocks: nn.ModuleList, tokens: Tensor) -> Tensor:
    for block in blocks:
        output = block(tokens)
        tokens = output[0] if isinstance(output, tuple) else output  # a tuple before transformers 5
    return tokens


def _make_head(config: Any, classes: int) -> nn.Linear:
    """Return a new head. Initialise it as transformers does."""
    head = nn.Linear(config.hidden_size, classes)
    nn.init.normal_(head.weight, std=config.initializer_range)
    nn.init.zeros_(head.bias)
    return head


def _resize(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    if size is None:
        return images
    return nn.functional.interpolate(images, size, mode="bilinear", align_corners=False)


def _as_sides(size: Any) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _format_size(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
