"""A free-rider that does not train and returns the received model, plain or disguised by noise.

    w_i = w_received + strength * mean|w_received - w_before| * N(0, 1)
    w_i -> scale * w_i,   then (W, b)_head -> head * (W, b)_head

Strength 0 is the plain free-rider. The noise has the size of the received model's last change, so that the upload
looks trained. In its first round the client knows no change and adds no noise. Larger weights make the logits of an
untrained model look confident.

Reference: Fraboni, Vidal, Lorenzi, Free-rider Attacks on Model Aggregation in Federated Learning, AISTATS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from celm.attacks.attack import Attack, AttackContext
from celm.attacks.layers import scale_tensors
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class CopyGlobal(Attack):
    """Does not train: returns the received model, plus noise.

    Noise is scaled by `strength`.
    """

    strength: float = 0.0
    """Noise, in units of the last mean absolute change of the received model; 0: none."""
    scale: float = 1.0
    """Factor on all weights."""
    head: float = 1.0
    """Further factor on the head."""

    def trains_in(self, round_number: int, rounds: int) -> bool:
        return False

    def poison(self, context: AttackContext) -> StateDict:
        model = self._add_noise(context)
        float_names = [name for name, tensor in model.items() if tensor.is_floating_point()]
        return scale_tensors(
            scale_tensors(model, float_names, self.scale), context.server_context.head, self.head
        )

    def _add_noise(self, context: AttackContext) -> StateDict:
        previous_model = context.previous_received_model
        if not self.strength or previous_model is None:
            return context.received_model
        float_names = [name for name, tensor in context.received_model.items() if tensor.is_floating_point()]
        absolute_change = torch.cat(
            [(context.received_model[name] - previous_model[name]).abs().flatten() for name in float_names]
        )
        noise_scale = self.strength * absolute_change.mean().item()
        model = dict(context.received_model)
        for name in float_names:
            noise = torch.randn(model[name].shape, generator=context.generator)
            model[name] = model[name] + noise_scale * noise.to(model[name])
        return model
