"""Gradients of cross-entropy through linear layers and ReLUs, without building an autograd graph.

    h_0 = x,  z_l = h_{l-1} W_lᵀ + b_l,  h_l = max(z_l, 0)
    δ_L = (softmax(z_L) - onehot(y)) / n,   δ_l = (δ_{l+1} W_{l+1}) ∘ [h_l > 0]
    dW_l = δ_lᵀ h_{l-1},  db_l = Σ_rows δ_l

The matrix products are those of autograd, in its order, so the result has the same bits. For a network as small as
the paper's MLP, building the graph takes a fifth of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from celm.core.model_stack import has_hooks


@dataclass(frozen=True)
class ReluMlp:
    """Weights `[out, in]` and biases `[out]` from inputs to logits, with a ReLU between each two layers."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]

    @torch.no_grad()
    def gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Return the gradients of a batch's mean cross-entropy, in the order weight, bias, weight, bias, ..."""
        hidden = [inputs.flatten(1)]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden.append(F.linear(hidden[-1], weight, bias).relu_())
        logits = F.linear(hidden[-1], self.weights[-1], self.biases[-1])
        loss_gradient = torch.zeros_like(logits).scatter_(1, labels.view(-1, 1), -1 / len(labels))
        error = torch._log_softmax_backward_data(loss_gradient, logits.log_softmax(1), 1, logits.dtype)
        gradients: list[Tensor] = []
        for weight, activation in zip(reversed(self.weights), reversed(hidden), strict=True):
            gradients += [error.sum(0), error.t() @ activation]
            if activation is not hidden[0]:
                error = torch.ops.aten.threshold_backward(error @ weight, activation, 0)
        return gradients[::-1]


def as_relu_mlp(module: nn.Module, parameters: Sequence[Tensor]) -> ReluMlp | None:
    """Return an `nn.Sequential` of these layers as a `ReluMlp` if exactly `parameters` are trained; else None."""
    if type(module) is not nn.Sequential or has_hooks(module):
        return None
    layers = list(module)
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    linear, activations = layers[::2], layers[1::2]
    if len(linear) != len(activations) + 1 or any(type(layer) is not nn.ReLU for layer in activations):
        return None
    tensors: list[Tensor] = []
    for layer in linear:
        if type(layer) is not nn.Linear or layer.bias is None:
            return None
        tensors += [layer.weight, layer.bias]
    if [id(tensor) for tensor in tensors] != [id(tensor) for tensor in parameters]:
        return None
    return ReluMlp(tensors[::2], tensors[1::2])
