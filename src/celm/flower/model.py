"""The model that a strategy is given: checked, and judged on data of the server's own where a rule needs that."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.method.stacking import logits_of
from celm.metrics.accuracy import confusion
from celm.models.factory import try_out
from celm.models.state import StateDict, load_state
from celm.rules.exchange import Validate

Model = nn.Module | Callable[[], nn.Module]
"""A module, or a function that makes one."""
BATCH = 1000


def own_module(model: Model, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A module apart from the user's, which turns inputs of this shape into that many logits."""
    module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise CelmError(
            f"the model is {type(module).__name__}, not an nn.Module nor a function that makes one"
        )
    module = module.cpu()
    try_out(module, type(module).__name__, input_shape, classes)
    return module


def validator(module: nn.Module, classes: int, inputs: Tensor, labels: Tensor) -> Validate:
    """Models to their confusion counts on these inputs `[n, *shape]` and labels `[n]`."""
    if len(inputs) != len(labels) or not len(labels):
        raise CelmError(f"validation: {len(inputs)} inputs and {len(labels)} labels")
    device = next(iter(module.state_dict().values())).device

    @torch.no_grad()
    def judge(models: Sequence[StateDict]) -> list[Tensor]:
        module.eval()
        counts = []
        for model in models:
            load_state(module, model)
            parts = [
                logits_of(module(part.to(device))).argmax(dim=1).cpu() for part in torch.split(inputs, BATCH)
            ]
            counts.append(confusion(torch.cat(parts), labels.cpu(), classes))
        return counts

    return judge
