"""Texts as rows of token numbers, by a tokenizer of Hugging Face transformers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.base.text import single_line, truncate
from celm.models.text_classifier import NO_TOKEN, check_source
from celm.models.vit import silence_transformers


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a folder or hub name. Code in the folder is not run."""
    try:
        import transformers
    except ImportError as error:
        raise CelmError("dataset.text_column needs transformers", "pip install 'celm[vit]'") from error
    check_source(name, "dataset.tokenizer")
    hint = "set dataset.tokenizer to a folder with tokenizer.json, or the name of a Hugging Face model"
    try:
        with silence_transformers(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        reason = truncate(single_line(str(error)), 200)
        raise CelmError(
            f"dataset.tokenizer: cannot load a tokenizer from '{name}': {reason}", hint
        ) from error
    # Without its files, transformers builds a tokenizer that knows no words.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise CelmError(f"dataset.tokenizer: '{name}' has no tokenizer", hint)
    return tokenizer


def encode_texts(tokenizer: Any, parts: Sequence[Sequence[str]], max_tokens: int) -> list[NDArray[np.int64]]:
    """Return each part of the texts as token numbers `[n, tokens]`, of the same width for all parts.

    A text of more than `max_tokens` tokens loses its end, and one warning says how many do. `NO_TOKEN` fills the rows.
    """
    limit = min(max_tokens, int(tokenizer.model_max_length))
    rows = [_tokenize(tokenizer, texts) for texts in parts]
    long = sum(len(row) > limit for part in rows for row in part)
    if long:
        total = sum(map(len, parts))
        warnings.warn(
            f"{long:,} of {total:,} texts have more than {limit} tokens, and are cut there (dataset.max_tokens)",
            stacklevel=2,
        )
        rows = [_tokenize(tokenizer, texts, truncation=True, max_length=limit) for texts in parts]
    width = max(1, *(len(row) for part in rows for row in part))
    return [_fill(part, width) for part in rows]


def _tokenize(tokenizer: Any, texts: Sequence[str], **options: Any) -> list[list[int]]:
    if not texts:
        return []
    numbers: list[list[int]] = tokenizer(list(texts), verbose=False, **options)["input_ids"]
    return numbers


def _fill(rows: Sequence[Sequence[int]], width: int) -> NDArray[np.int64]:
    filled = np.full((len(rows), width), NO_TOKEN, dtype=np.int64)
    for row, numbers in zip(filled, rows, strict=True):
        row[: len(numbers)] = numbers
    return filled
