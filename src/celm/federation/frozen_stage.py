"""The frozen stage of a federation's model: its outputs as training data, and the part of the model that is probed."""

from __future__ import annotations

import torch
from torch import nn

from celm.base.errors import CelmError
from celm.data.dataset import Dataset
from celm.data.frozen_features import encode_dataset
from celm.experiment.config import Experiment
from celm.models.staged import StagedModel, TrainedStage
from celm.models.state_dict import StateDict, get_state


def encode_if_cached(
    experiment: Experiment, module: nn.Module, dataset: Dataset, device: str
) -> tuple[Dataset, bool]:
    """Return the dataset, and whether its inputs are now outputs of the model's frozen stage."""
    if not isinstance(module, StagedModel) or not experiment.run.cache_frozen:
        return dataset, False
    return encode_dataset(dataset, module.frozen, device), True


def frozen_tensors(module: nn.Module, exchanged: StateDict) -> StateDict:
    """Return the tensors of the frozen stage, which clients do not exchange; none if the model has no such stage."""
    if not isinstance(module, StagedModel):
        return {}
    return {name: tensor for name, tensor in get_state(module).items() if name not in exchanged}


@torch.no_grad()
def probed_part(
    experiment: Experiment, module: nn.Module, shape: tuple[int, ...]
) -> tuple[nn.Module, tuple[int, ...]]:
    """Return the module that rules probe and the shape of its inputs: the whole model, unless `probe.layer` is set."""
    if experiment.probe.layer is None:
        return module, shape
    if not isinstance(module, StagedModel):
        raise CelmError(
            f"probe.layer: model '{experiment.model.name}' has no frozen stage",
            "remove the setting, or freeze layers of model 'vit', as by model.trainable=last:2",
        )
    device = next(module.parameters()).device
    outputs = module.frozen(torch.zeros(1, *shape, device=device))
    return TrainedStage(module, inputs_encoded=True).eval(), tuple(outputs.shape[1:])
