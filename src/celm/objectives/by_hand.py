"""Gradients of cross-entropy through linear layers and ReLUs, without building an autograd graph.

    h_0 = x,  z_l = h_{l-1} W_lᵀ + b_l,  h_l = max(z_l, 0)
    δ_L = (softmax(z_L) - onehot(y)) / n,   δ_l = (δ_{l+1} W_{l+1}) ∘ [h_l > 0]
    dW_l = δ_lᵀ h_{l-1},  db_l = Σ_rows δ_l

The matrix products are those that autograd makes, in its order, so the result has the same bits. For a network as
small as the paper's MLP a fifth of a step goes into the graph otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from celm.method.stacking import hooked


@dataclass(frozen=True)
class LinearChain:
    """Weights `[out, in]` and biases `[out]` from the inputs to the logits, a ReLU between each two."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]

    @torch.no_grad()
    def gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Of the mean cross-entropy of a batch, in the order weight, bias, weight, bias, ..."""
        hidden = [inputs.flatten(1)]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden.append(F.linear(hidden[-1], weight, bias).relu_())
        logits = F.linear(hidden[-1], self.weights[-1], self.biases[-1])
        wanted = torch.zeros_like(logits).scatter_(1, labels.view(-1, 1), -1 / len(labels))
        error = torch._log_softmax_backward_data(wanted, logits.log_softmax(1), 1, logits.dtype)
        found: list[Tensor] = []
        for weight, before in zip(reversed(self.weights), reversed(hidden), strict=True):
            found += [error.sum(0), error.t() @ before]
            if before is not hidden[0]:
                error = torch.ops.aten.threshold_backward(error @ weight, before, 0)
        return found[::-1]


def linear_chain(module: nn.Module, parameters: Sequence[Tensor]) -> LinearChain | None:
    """An `nn.Sequential` as such a chain, if that is what it is and exactly `parameters` are trained; else None."""
    if type(module) is not nn.Sequential or hooked(module):
        return None
    layers = list(module)
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    linear, between = layers[::2], layers[1::2]
    if len(linear) != len(between) + 1 or any(type(layer) is not nn.ReLU for layer in between):
        return None
    found: list[Tensor] = []
    for layer in linear:
        if type(layer) is not nn.Linear or layer.bias is None:
            return None
        found += [layer.weight, layer.bias]
    if [id(tensor) for tensor in found] != [id(tensor) for tensor in parameters]:
        return None
    return LinearChain(found[::2], found[1::2])
