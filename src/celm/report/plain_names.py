"""Names of splits, models and datasets in plain words, for titles."""

from __future__ import annotations

import re

_PLAIN_NAMES = {
    # splits
    "iid": "equal parts (IID)",
    "dirichlet": "random label skew (Dirichlet)",
    "pls": "pure label skew",
    "sls": "step label skew",
    "maverick": "one Maverick",
    "free_rider": "one free-rider",
    "frm": "free-rider and Maverick",
    "natural": "natural split",
    # models
    "mlp": "MLP",
    "cnn": "CNN",
    "vit": "ViT",
    "cnn1d": "1-D CNN",
    # datasets
    "digits": "digits",
    "fashion_mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "emnist": "EMNIST",
    "emnist47": "EMNIST-47",
    "fedisic": "Fed-ISIC",
    "fedisic_features": "Fed-ISIC features",
    "folder": "own images",
    "table": "own table",
    "hf": "Hugging Face dataset",
    "heart": "heart disease",
    "hapt": "HAPT (30 people)",
    "fsdd": "FSDD (6 speakers)",
}
_METRICS = {
    "auroc": "AUROC",
    "emd": "earth mover's distance",
    "fpr": "false-positive rate",
    "hellinger": "Hellinger distance",
    "jsd": "Jensen-Shannon distance",
    "tpr": "true-positive rate",
}
_ORDINARY_WORDS = {"natural", "maverick", "digits", "folder", "table", "heart"}
"""Names that a title may also contain as ordinary words."""
_WORDS = re.compile(
    rf"(?<![\w.+=-])({'|'.join(name for name in _PLAIN_NAMES if name not in _ORDINARY_WORDS)})"
    r"(?:_(\d[\d.]*))?(?![\w.+-]|=)"
)
_METRIC_WORDS = re.compile(rf"(?<![\w.+=-])({'|'.join(_METRICS)})(?![\w.+-]|=)")


def plain_name(name: str) -> str:
    """Return a split, model or dataset in plain words; other names are unchanged.

    >>> plain_name("pls"), plain_name("mlp"), plain_name("mine")
    ('pure label skew', 'MLP', 'mine')
    """
    return _PLAIN_NAMES.get(name, name)


def plain_title(title: str) -> str:
    """Return a title with plain words for names that stand alone in it. Settings are unchanged.

    >>> plain_title("fashion_mnist, pls, 8 rounds"), plain_title("digits sls, split.name=pls")
    ('Fashion-MNIST, pure label skew, 8 rounds', 'digits step label skew, split.name=pls')
    """
    return _WORDS.sub(_plain_words, title)


def plain_label(label: str) -> str:
    """Return a row or column of a study's table in plain words. Settings are unchanged.

    >>> plain_label("emnist dirichlet_0.05 balanced_accuracy")
    'EMNIST random label skew (Dirichlet 0.05) balanced accuracy'
    >>> plain_label("digits pls jsd, train.batch_size=8")
    'digits pure label skew Jensen-Shannon distance, train.batch_size=8'
    """
    text = _METRIC_WORDS.sub(lambda match: _METRICS[match[1]], plain_title(label))
    return " ".join(word if "=" in word else word.replace("_", " ") for word in text.split(" "))


def _plain_words(match: re.Match[str]) -> str:
    """Return the plain words of a name; the number of a split goes into its brackets."""
    words, number = _PLAIN_NAMES[match[1]], match[2]
    if number is None:
        return words
    return f"{words[:-1]} {number})" if words.endswith(")") else f"{words} {number}"
