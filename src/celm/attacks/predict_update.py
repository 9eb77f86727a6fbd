"""A free-rider that does not train and sends the next global update as it predicts it.

    g_s = w_s+1 - w_s                                      changes of the received model, s = 1 .. n; the last is g_n
    a   = argmin ||g_n - Σ_j a_j g_j||²                    over j < n
    ĝ   = g_n + Σ_j a_j (g_j+1 - g_j)                      the prediction of g_n+1; g_n in its second and third round
    w_i = w_received + strength ||g_n|| ĝ / ||ĝ||          in its first round, the received model

The upload points where the federation is about to go, so estimators that compare a client with the average, in this
round or in later ones, take it for a good client. Only received models are used. The prediction is exact if updates
follow any linear law g_s+1 = M g_s and g_n is in the span of the earlier ones, as for gradient descent on a quadratic.
If batches are noisy or the updates hardly turn, it is about as good as `replay_delta`.
Reference: Xu, Jiang, Niu, Jia, Li & Poovendran, ACE: A Model Poisoning Attack on Contribution Evaluation Methods in
Federated Learning, USENIX Security 2024. We could read its abstract only; the predictor by least squares is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.attacks.attack import Attack, AttackContext
from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled, difference, flatten, l2_norm

_RELATIVE_RANK_TOLERANCE = 1e-10
"""Eigenvalues of the Gram matrix below this fraction of the largest are rounding."""


@dataclass(frozen=True)
class PredictUpdate(Attack):
    """Does not train: predicts the next global update.

    The prediction has `strength` times the length of the last update.
    """

    memory: Annotated[int, Field(ge=1, le=1000)] = 10
    """Number of past updates that the prediction uses."""

    @property
    def remembered_models(self) -> int:
        return self.memory

    def trains_in(self, round_number: int, rounds: int) -> bool:
        return False

    def poison(self, context: AttackContext) -> StateDict:
        models = (*context.earlier_models, context.received_model)
        steps = [difference(after, before) for before, after in pairwise(models)]
        if not steps:
            return context.received_model
        prediction = predict_next(steps)
        length = l2_norm(prediction)
        if not length > 0:
            return context.received_model
        return add_scaled(context.received_model, prediction, self.strength * l2_norm(steps[-1]) / length)


def predict_next(steps: list[StateDict]) -> StateDict:
    """Return the update that follows `steps`, the last at the end."""
    coefficients = _fit_last(torch.stack([flatten(step) for step in steps]).double())
    prediction = steps[-1]
    for value, (step, following) in zip(coefficients.tolist(), pairwise(steps), strict=True):
        prediction = add_scaled(prediction, difference(following, step), value)
    return prediction


def _fit_last(steps: Tensor) -> Tensor:
    """Return the coefficients `[n - 1]` with which the first rows of `steps` `[n, P]` best make up the last."""
    earlier, last = steps[:-1], steps[-1]
    inverse: Tensor = torch.linalg.pinv(earlier @ earlier.T, rtol=_RELATIVE_RANK_TOLERANCE, hermitian=True)
    return inverse @ (earlier @ last)
