"""Accuracy on a test set, from counts.

C[y, z]              number of samples of class y predicted as z
accuracy             = Σ_y C[y, y] / Σ_yz C[y, z]
recall(y)            = C[y, y] / Σ_z C[y, z],   for each class y that the test set has
balanced accuracy    = mean of recall(y) over these classes   (scikit-learn's `balanced_accuracy_score`)
rare-class accuracy  = mean of recall(y) over the rare ones of these classes, which few clients hold
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from celm.base.errors import CelmError


@dataclass(frozen=True)
class Accuracy:
    """Accuracies as fractions from 0 to 1; None for classes without test samples."""

    accuracy: float
    balanced_accuracy: float
    per_class: tuple[float | None, ...]
    rare_class_accuracy: float | None


def count_confusions(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Count `predicted [n]` against `labels [n]`: int64 `[K, K]`, rows true, columns predicted.

    The counts of batches add up to the counts of the test set.

    >>> count_confusions(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    if predicted.shape != labels.shape or predicted.ndim != 1:
        raise ValueError(
            f"predicted {list(predicted.shape)} and labels {list(labels.shape)} must be vectors of one length"
        )
    for argument, values in (("predicted", predicted), ("labels", labels)):
        if values.numel() and (int(values.min()) < 0 or int(values.max()) >= classes):
            raise ValueError(f"{argument} must be from 0 to {classes - 1}")
    cells = labels.long() * classes + predicted.long()
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def compute_accuracy(confusion: Tensor, rare_classes: Sequence[int] = ()) -> Accuracy:
    """Return the accuracies of a confusion matrix `[K, K]`."""
    counts: list[list[int]] = confusion.tolist()
    correct = [row[k] for k, row in enumerate(counts)]
    samples = [sum(row) for row in counts]
    if not sum(samples):
        raise CelmError("accuracy is not defined: the test set is empty")
    per_class = tuple(hit / n if n else None for hit, n in zip(correct, samples, strict=True))
    balanced = _mean_of_defined(per_class)
    assert balanced is not None  # some class has samples
    return Accuracy(
        accuracy=sum(correct) / sum(samples),
        balanced_accuracy=balanced,
        per_class=per_class,
        rare_class_accuracy=_mean_of_defined([per_class[k] for k in rare_classes]),
    )


def mean_accuracy(results: Sequence[Accuracy]) -> Accuracy:
    """Return the mean over several models tested on the same set."""
    if not results:
        raise ValueError("no results to average")
    return Accuracy(
        accuracy=sum(result.accuracy for result in results) / len(results),
        balanced_accuracy=sum(result.balanced_accuracy for result in results) / len(results),
        per_class=tuple(
            _mean_of_defined(recalls) for recalls in zip(*(r.per_class for r in results), strict=True)
        ),
        rare_class_accuracy=_mean_of_defined([result.rare_class_accuracy for result in results]),
    )


def _mean_of_defined(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
