"""A tiny text classifier of transformers with its tokenizer, and a table of texts whose words tell their class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs pip install 'celm[vit]'")

WORDS = {
    "sport": ("goal", "team", "match", "coach", "score", "league"),
    "food": ("bread", "soup", "cheese", "salt", "oven", "dinner"),
    "music": ("piano", "song", "chord", "drum", "choir", "melody"),
    "space": ("rocket", "orbit", "moon", "comet", "star", "planet"),
}
"""Class to the words that only its texts have."""
FILLERS = ("the", "a", "of", "and", "was", "very")
HELD = {"north": ("sport", "food"), "south": ("sport", "food", "music"), "west": ("music", "space")}
"""Client to its classes. Only `west` has texts about space."""


def save_model(folder: Path, kind: str = "distilbert", seed: int = 0, **settings: Any) -> Path:
    """Save a model with random weights and a WordPiece tokenizer, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [word for words in WORDS.values() for word in words]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *FILLERS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"vocab_size": len(vocabulary), "max_position_embeddings": 32, "initializer_range": 0.2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "distilbert":
            config = transformers.DistilBertConfig(
                dim=24, n_layers=1, n_heads=2, hidden_dim=48, **(sizes | settings)
            )
            model = transformers.DistilBertForSequenceClassification(config)
        else:
            config = transformers.AutoConfig.for_model(
                kind, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
                **(sizes | settings),
            )  # fmt: skip
            model = transformers.AutoModelForSequenceClassification.from_config(config)
        model.save_pretrained(folder)
    return folder


def texts(count: int, label: str, rng: np.random.RandomState) -> list[str]:
    """Return texts of 3 to 9 words, of which two or three are words of the class."""
    drawn = []
    for _ in range(count):
        words = [*rng.choice(WORDS[label], rng.randint(2, 4)), *rng.choice(FILLERS, rng.randint(1, 7))]
        rng.shuffle(words)
        drawn.append(" ".join(words))
    return drawn


def table_rows(per_class: int = 40, held: Mapping[str, tuple[str, ...]] = HELD) -> list[dict[str, str]]:
    """Return rows with `review`, `label` and `client`: the same number for each class of a client."""
    rng = np.random.RandomState(7)
    return [
        {"review": text, "label": label, "client": client}
        for client, labels in held.items()
        for label in labels
        for text in texts(per_class, label, rng)
    ]


def write_reviews(path: Path, per_class: int = 40) -> Path:
    """Write the table as CSV or parquet, by the suffix of `path`."""
    table = pa.Table.from_pylist(table_rows(per_class))
    path.parent.mkdir(parents=True, exist_ok=True)
    (pa.csv.write_csv if path.suffix == ".csv" else pa.parquet.write_table)(table, path)
    return path
