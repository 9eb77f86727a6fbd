"""Text classifiers of Hugging Face transformers, from a folder or the hub.

    token numbers [batch, tokens] --attention mask, embedding--> vectors [batch, tokens, width] --> logits

A text has no inputs that a probe could move, so a probe starts at the vectors. The same module takes both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.text import format_exception, single_line, truncate
from celm.core.model_stack import extract_logits
from celm.models.registry import ModelFactory
from celm.models.user_model import check_forward
from celm.models.vit_backbones import ATTENTION_IMPLEMENTATION, silence_transformers

NO_TOKEN = -1
"""Number that fills a row of token numbers after the end of its text."""
_PATH_STARTS = ("/", "./", "../", "~")
_PROBED_TOKENS = 8
"""Largest number of vectors in a probe input."""


class TextClassifier(nn.Module):
    """A classifier of texts: `[batch, tokens]` token numbers, or `[batch, tokens, width]` vectors, to logits.

    `NO_TOKEN` is padding, which the model does not attend to.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        config, known = model.config, range(self.vocabulary_size)
        candidates = (getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None))
        # Models that read their answer at the last token find it by this number.
        config.pad_token_id = next((number for number in candidates if number in known), 0)

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens that the model knows."""
        return int(self.model.get_input_embeddings().num_embeddings)

    def probed_shape(self, tokens: int) -> tuple[int, int]:
        """Return the shape of a probe input for texts of this length."""
        return min(tokens, _PROBED_TOKENS), int(self.model.get_input_embeddings().embedding_dim)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            return extract_logits(self.model(inputs_embeds=inputs))
        is_token = inputs != NO_TOKEN
        tokens = inputs.masked_fill(~is_token, self.model.config.pad_token_id)
        return extract_logits(self.model(input_ids=tokens, attention_mask=is_token.long()))


@dataclass(frozen=True)
class HuggingFaceText(ModelFactory):
    """Text classifier or encoder of transformers (hf:NAME, or a folder)."""

    weights: str
    """Folder with config.json and model.safetensors, or a name of the hub, as in `distilbert/distilbert-base-uncased`.
    A last layer for another number of classes is replaced by a new one."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(input_shape) != 1:
            raise CelmError(
                f"model 'hf' needs texts, not inputs of shape {input_shape}",
                "set dataset.text_column to the column of a table",
            )
        try:
            import transformers
        except ImportError as error:
            raise CelmError("model 'hf' needs transformers", "pip install 'celm[vit]'") from error
        with silence_transformers(transformers):
            module = TextClassifier(self._load(transformers, classes))
        name = f"hf:{self.weights}"
        check_forward(module, name, module.probed_shape(input_shape[0]), classes)
        _check_length(module, name, input_shape[0])
        return module.train()

    def _load(self, transformers: Any, classes: int) -> Any:
        check_source(self.weights, "model.weights")
        try:
            model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
                self.weights,
                num_labels=classes,
                ignore_mismatched_sizes=True,
                attn_implementation=ATTENTION_IMPLEMENTATION,
                use_safetensors=True,  # never unpickle
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:
            reason = truncate(single_line(str(error)), 200)
            raise CelmError(
                f"model.weights: cannot load '{self.weights}': {reason}",
                "give a folder with config.json and model.safetensors, or the name of a Hugging Face model",
            ) from error
        encoder = f"{model.base_model_prefix}."
        missing = [
            name
            for name in sorted(info["missing_keys"])
            if name.startswith(encoder)
            and "pooler" not in name  # many encoders are saved without their pooler
        ]
        if missing:
            raise CelmError(
                f"model.weights: '{self.weights}' lacks {len(missing)} of the encoder's tensors, first '{missing[0]}'"
            )
        return model.float()


def check_source(name: str, setting: str) -> None:
    """Raise CelmError if the name is the path of a folder that does not exist. A name of the hub is not a path."""
    if name.startswith(_PATH_STARTS) and not Path(name).expanduser().is_dir():
        raise CelmError(f"{setting}: there is no folder {name}")


def _check_length(module: TextClassifier, name: str, tokens: int) -> None:
    """Raise CelmError if the model fails on texts of this length."""
    try:
        with torch.no_grad():
            module.eval()(torch.zeros(2, tokens, dtype=torch.int64))
    except Exception as error:
        raise CelmError(
            f"model '{name}' fails on texts of {tokens} tokens: {truncate(format_exception(error), 200)}",
            "set dataset.max_tokens to fewer",
        ) from error
