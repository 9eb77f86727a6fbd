"""A client that pretends to know classes of which it has no samples.

    head row k (W_k and b_k) -> strength * r        for every fabricated class k; r depends on `rows`

    copy      row j of its own head; j is the class with most of its samples, the lowest if tied
    random    a Gaussian row, the same in every round, with the mean norm of its rows of classes that it has
    global    row k of the global model's head at the start of the round
    own       row k of its own head

With a copy, the logit of k is strength times that of j, and so is its maximum over inputs. So the evidence for k is
as high as for a real class. The other rows do not rise together with a class that the client has. A random b_k has the
mean size of the biases of those classes and either sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from celm.attacks.attack import AttackContext
from celm.attacks.class_forgery import ClassForgery
from celm.base.errors import CelmError
from celm.base.randomness import make_generator
from celm.models.state_dict import StateDict
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class FabricateClass(ClassForgery):
    """Replaces the head rows of classes that it lacks.

    By default the new rows are copies of the row of a class that it has.
    """

    strength: float = 1.0
    """Factor on the rows."""
    rows: Literal["copy", "random", "global", "own"] = "copy"
    """Their rows: `copy` of its row of the class with most samples; `random`, Gaussian with the mean norm of its rows;
    `global`, those of the global model (also while heads stay local); `own`, those that it trained."""

    def check(self, context: ServerContext, labels: Tensor) -> None:
        if self.rows in ("copy", "random") and not len(labels):
            raise CelmError(
                f"attack 'fabricate_class': {self.client} has no samples, so attack.rows cannot be '{self.rows}'"
            )
        super().check(context, labels)

    def poison(self, context: AttackContext) -> StateDict:
        forged_classes = self.forged_classes(context.server_context, context.labels)
        model = dict(context.trained_model)
        for name in context.server_context.head:
            tensor = model[name].clone()
            tensor[forged_classes] = self.strength * self._forge_rows(context, name, forged_classes)
            model[name] = tensor
        return model

    def _forge_rows(self, context: AttackContext, name: str, forged_classes: list[int]) -> Tensor:
        """Return rows for one of the head's tensors, one for all fabricated classes or one for each."""
        head_tensor = context.trained_model[name]
        match self.rows:
            case "copy":
                return head_tensor[
                    int(torch.bincount(context.labels, minlength=context.server_context.classes).argmax())
                ]
            case "random":
                own_rows = head_tensor[sorted(set(context.labels.tolist()))]
                row_generator = make_generator(
                    context.server_context.seed, "fabricated rows", self.client, name
                )
                random_rows = torch.randn(
                    len(forged_classes), *head_tensor.shape[1:], generator=row_generator
                ).to(head_tensor)
                return random_rows / _row_norms(random_rows) * _row_norms(own_rows).mean()
            case "global":
                return context.global_model[name][forged_classes]
            case "own":
                return head_tensor[forged_classes]


def _row_norms(rows: Tensor) -> Tensor:
    """Return the norms `[k, 1]` of rows `[k, d]`, or the absolute values `[k]` of biases `[k]`."""
    return rows.abs() if rows.ndim == 1 else rows.norm(dim=1, keepdim=True)
