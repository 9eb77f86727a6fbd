"""A client that pretends to know classes of which it has no sample.

    head row k (W_k and b_k) -> strength * r        for every fabricated class k, where r is, by `rows`,

    copy      row j of its own head; j is the class it has most samples of, the lowest of several
    random    a Gaussian row, the same in every round, of the mean length of its own rows of classes it has samples of
    global    row k of the head of the global model that the round began from
    own       row k of its own head

With a copy its logit of k is strength times that of j, and so is the highest one that any input reaches: evidence
for k that is as good as real. The other rows do not rise together with one of a class that it has. A random b_k is as
large as the biases of those classes on average, of either sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from celm.attacks.attack import Attack, Upload
from celm.base.errors import CelmError
from celm.base.randomness import generator
from celm.models.state import StateDict
from celm.rules.rule import Facts


@dataclass(frozen=True)
class FabricateClass(Attack):
    """Sends other head rows, by strength, for classes that it lacks: by default copies of one that it has."""

    strength: float = 1.0
    """What the rows are multiplied by."""
    classes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Classes to fabricate; by default all of which it has no sample."""
    rows: Literal["copy", "random", "global", "own"] = "copy"
    """What their rows are: a copy of its own row of the class it has most samples of, Gaussian ones of the mean length
    of its own rows of classes it has, those of the global model that it was sent (also while its own head stays with
    it), or its own."""

    def check(self, federation: Facts, labels: Tensor) -> None:
        if self.rows in ("copy", "random") and not len(labels):
            raise CelmError(f"attack 'fabricate_class': {self.client} has no samples to know a class from")
        unknown = [k for k in self.classes or () if k >= federation.classes]
        if unknown:
            raise CelmError(
                f"attack.classes: there is no class {unknown[0]}, only 0 to {federation.classes - 1}"
            )
        if not self.fabricated(federation, labels):
            raise CelmError(
                f"attack 'fabricate_class': {self.client} has samples of every class",
                "say by attack.classes which ones it is to fabricate",
            )

    def fabricated(self, federation: Facts, labels: Tensor) -> list[int]:
        if self.classes is not None:
            return list(self.classes)
        held = set(labels.tolist())
        return [k for k in range(federation.classes) if k not in held]

    def upload(self, upload: Upload) -> StateDict:
        fabricated = self.fabricated(upload.federation, upload.labels)
        sent = dict(upload.trained)
        for name in upload.federation.head:
            tensor = sent[name].clone()
            tensor[fabricated] = self.strength * self.made_up(upload, name, fabricated)
            sent[name] = tensor
        return sent

    def made_up(self, upload: Upload, name: str, fabricated: list[int]) -> Tensor:
        """Rows of one of the head's tensors, one for all or one for each fabricated class."""
        own = upload.trained[name]
        match self.rows:
            case "copy":
                return own[int(torch.bincount(upload.labels, minlength=upload.federation.classes).argmax())]
            case "random":
                held = own[sorted(set(upload.labels.tolist()))]
                noise = generator(upload.federation.seed, "fabricated rows", self.client, name)
                drawn = torch.randn(len(fabricated), *own.shape[1:], generator=noise).to(own)
                return drawn / lengths(drawn) * lengths(held).mean()
            case "global":
                return upload.global_model[name][fabricated]
            case "own":
                return own[fabricated]


def lengths(rows: Tensor) -> Tensor:
    """Of rows `[k, d]` as `[k, 1]`, of biases `[k]` as `[k]`."""
    return rows.abs() if rows.ndim == 1 else rows.norm(dim=1, keepdim=True)
