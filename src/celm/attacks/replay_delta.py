"""A free-rider that does not train and repeats the last change of the global model.

    w_i = w_received + strength * (w_received - w_before)

The upload points in the direction of the federation, so its similarity to the average is high. In its first round
the client knows no change and returns the received model.
"""

from __future__ import annotations

from dataclasses import dataclass

from celm.attacks.attack import Attack, AttackContext
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class ReplayDelta(Attack):
    """Does not train: repeats the last global update.

    The update is multiplied by `strength`.
    """

    def trains_in(self, round_number: int, rounds: int) -> bool:
        return False

    def poison(self, context: AttackContext) -> StateDict:
        previous_model = context.previous_received_model
        if previous_model is None:
            return context.received_model
        return {
            name: tensor + self.strength * (tensor - previous_model[name])
            if tensor.is_floating_point()
            else tensor
            for name, tensor in context.received_model.items()
        }
