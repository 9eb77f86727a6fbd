"""A model in two stages, of which only the second is trained.

    f(x) = trained(frozen(x))

The frozen stage gives the same output for an input in every round. So a run computes it once for each sample, and
clients train the second stage on these outputs. They exchange the tensors of the second stage only.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

FROZEN_STAGE = "frozen"
"""The name of the frozen stage in `StagedModel`."""


class StagedModel(nn.Module):
    """A classifier whose first stage is frozen and always in eval mode; the head is in the second stage.

    >>> import torch
    >>> model = StagedModel(nn.Linear(3, 2), nn.Linear(2, 4))
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['trained.weight', 'trained.bias']
    >>> tuple(model(torch.zeros(5, 3)).shape)
    (5, 4)
    """

    def __init__(self, frozen: nn.Module, trained: nn.Module) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False).eval()
        self.trained = trained

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.trained(self.frozen(inputs))
        return logits

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the trained stage. Dropout in the frozen stage would change its outputs."""
        super().train(mode)
        self.frozen.eval()
        return self


class TrainedStage(nn.Module):
    """The trained stage of a model, with the tensor names of the whole model.

    With `inputs_encoded`, inputs are outputs of the frozen stage. Otherwise it is run first; its tensors are not a
    part of the state dict.
    """

    def __init__(self, model: StagedModel, inputs_encoded: bool) -> None:
        super().__init__()
        self.trained = model.trained
        # In a tuple, so that it is not registered: clients do not exchange it.
        self._frozen: tuple[nn.Module, ...] = () if inputs_encoded else (model.frozen,)

    def forward(self, inputs: Tensor) -> Tensor:
        for frozen in self._frozen:
            inputs = frozen(inputs)
        logits: Tensor = self.trained(inputs)
        return logits


def exchanged_part(module: nn.Module) -> nn.Module:
    """Return the module whose tensors clients exchange: the trained stage, or a model without stages itself."""
    return TrainedStage(module, inputs_encoded=True) if isinstance(module, StagedModel) else module
