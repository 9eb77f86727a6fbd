"""Texts in an experiment: the tokenizer comes from the model, and a probe starts at the embedding."""

from __future__ import annotations

from torch import nn

from celm.base.errors import CelmError
from celm.data.dataset import Dataset
from celm.experiment.config import Experiment
from celm.models.text_classifier import TextClassifier


def share_tokenizer(experiment: Experiment) -> Experiment:
    """Return the experiment with the tokenizer of its model, unless the dataset names another or has no texts."""
    dataset, model = experiment.dataset, experiment.model
    if model.name != "hf" or "text_column" not in dataset.options or "tokenizer" in dataset.options:
        return experiment
    tokenizer = model.options.get("weights")
    return experiment.model_copy(update={"dataset": dataset.model_copy(update={"tokenizer": tokenizer})})


def probed_shape(module: nn.Module, dataset: Dataset) -> tuple[int, ...]:
    """Return the shape of a probe input; raise CelmError if the model cannot take the dataset's inputs."""
    is_text = not dataset.train_inputs.is_floating_point()
    if not isinstance(module, TextClassifier):
        if is_text:
            raise CelmError("the inputs are texts, which this model cannot take", "add --model hf:NAME")
        return dataset.shape
    if not is_text:
        raise CelmError("model 'hf' needs texts", "set dataset.text_column to the column of a table")
    highest = int(max(dataset.train_inputs.max(), dataset.test_inputs.max()))
    if highest >= module.vocabulary_size:
        raise CelmError(
            f"the tokenizer has token {highest}, but the model knows {module.vocabulary_size:,} tokens",
            "set dataset.tokenizer to that of the model",
        )
    return module.probed_shape(*dataset.shape)
