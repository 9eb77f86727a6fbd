"""Derivatives of the mean cross-entropy L of a model on labelled data, with respect to its parameters.

    gradient   g = ∇L(w)
    curvature  H d = ∇<g, d>        the Hessian times a direction d, by differentiating twice

Reference: Pearlmutter, Fast Exact Multiplication by the Hessian, Neural Computation 1994.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from celm.core.model_stack import extract_logits


@dataclass(frozen=True)
class LossDerivatives:
    """Loss and derivatives at one model, in float64."""

    loss: float
    gradient: Mapping[str, Tensor]
    curvature: Mapping[str, Tensor]
    """H d; empty without a direction."""


@torch.enable_grad()
def loss_derivatives(
    module: nn.Module,
    model: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
    direction: Mapping[str, Tensor] | None = None,
    batch_size: int = 1000,
) -> LossDerivatives:
    """Return the loss of `model` on `inputs` `[n, *shape]` and `labels` `[n]`, and its derivatives.

    The module is in eval mode. Tensors that are missing from `model` are those of the module. A tied parameter appears
    once. `direction` has values for some or all parameters.
    """
    module.eval()
    # Each tied tensor once: `functional_call` puts it in all its places.
    here = {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    state = {name: model[name].to(tensor) if name in model else tensor for name, tensor in here.items()}
    names = [name for name, _ in module.named_parameters() if name in model]
    leaves = {name: state[name].detach().clone().requires_grad_() for name in names}
    total_loss = 0.0
    gradient = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in leaves.items()}
    # A direction of length 1, because the product with a very long one would overflow.
    along = {name: direction[name].double() for name in names if name in direction} if direction else {}
    length = float(sum(tensor.square().sum() for tensor in along.values()) ** 0.5)
    curvature = {name: torch.zeros_like(gradient[name]) for name in (names if direction else ())}
    batches = zip(torch.split(inputs, batch_size), torch.split(labels, batch_size), strict=True)
    for part, part_labels in batches:
        logits = extract_logits(functional_call(module, {**state, **leaves}, (part,)))
        loss = cross_entropy(logits, part_labels, reduction="sum")
        total_loss += loss.item()
        slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=length > 0, allow_unused=True)
        slope = {name: value for name, value in zip(names, slopes, strict=True) if value is not None}
        for name, value in slope.items():
            gradient[name] += value.detach().double() / len(labels)
        used = [name for name in slope if name in along and slope[name].requires_grad]
        if length > 0 and used:
            terms = [(slope[name] * (along[name] / length).to(slope[name])).sum() for name in used]
            product = torch.stack(terms).sum()
            rows = torch.autograd.grad(product, list(leaves.values()), allow_unused=True)
            for name, value in zip(names, rows, strict=True):
                if value is not None:
                    curvature[name] += value.double() * length / len(labels)
    return LossDerivatives(total_loss / len(labels), gradient, curvature)
