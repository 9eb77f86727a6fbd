"""Accuracy on a test set, from counts.

C[y, z]              number of samples of class y predicted as z
accuracy             = Σ_y C[y, y] / Σ_yz C[y, z]
recall(y)            = C[y, y] / Σ_z C[y, z],   for each class y that the test set has
balanced accuracy    = mean of recall(y) over these classes   (scikit-learn's `balanced_accuracy_score`)
rare-class accuracy  = mean of recall(y) over those of them that few clients hold
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from celm.base.errors import CelmError


@dataclass(frozen=True)
class Accuracy:
    """Fractions from 0 to 1; None where the test set has no sample to judge by."""

    accuracy: float
    balanced_accuracy: float
    per_class: tuple[float | None, ...]
    rare_class_accuracy: float | None


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts `[K, K]`, int64, rows true and columns predicted, of `predicted [n]` and `labels [n]`.

    Counts of batches add up to those of the whole.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    if predicted.shape != labels.shape or predicted.ndim != 1:
        raise ValueError(f"predicted {list(predicted.shape)} and labels {list(labels.shape)} differ")
    for what, values in (("predicted", predicted), ("labels", labels)):
        if values.numel() and (int(values.min()) < 0 or int(values.max()) >= classes):
            raise ValueError(f"{what} must be from 0 to {classes - 1}")
    cells = labels.long() * classes + predicted.long()
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def accuracy_of(confusion: Tensor, rare_classes: Sequence[int] = ()) -> Accuracy:
    """What a confusion matrix `[K, K]` says."""
    counts: list[list[int]] = confusion.tolist()
    right = [row[k] for k, row in enumerate(counts)]
    samples = [sum(row) for row in counts]
    if not sum(samples):
        raise CelmError("the test set is empty, so there is no accuracy")
    per_class = tuple(hit / n if n else None for hit, n in zip(right, samples, strict=True))
    balanced = mean(per_class)
    assert balanced is not None  # some class has samples
    return Accuracy(
        accuracy=sum(right) / sum(samples),
        balanced_accuracy=balanced,
        per_class=per_class,
        rare_class_accuracy=mean([per_class[k] for k in rare_classes]),
    )


def mean_accuracy(results: Sequence[Accuracy]) -> Accuracy:
    """The mean over several models tested on the same set."""
    if not results:
        raise ValueError("no results to average")
    return Accuracy(
        accuracy=sum(result.accuracy for result in results) / len(results),
        balanced_accuracy=sum(result.balanced_accuracy for result in results) / len(results),
        per_class=tuple(mean(recalls) for recalls in zip(*(r.per_class for r in results), strict=True)),
        rare_class_accuracy=mean([result.rare_class_accuracy for result in results]),
    )


def mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
