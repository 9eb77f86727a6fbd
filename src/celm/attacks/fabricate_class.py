"""A client that pretends to know classes of which it has no sample.

    head row k (W_k and b_k) -> strength * head row j        for every fabricated class k

j is the class it has most samples of, the lowest of several. Its logit of k is then strength times that of j, and so
is the highest one that any input reaches: evidence for k that is as good as real.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.attacks.attack import Attack, Upload
from celm.base.errors import CelmError
from celm.models.state import StateDict
from celm.rules.rule import Facts


@dataclass(frozen=True)
class FabricateClass(Attack):
    """Sends the head row of a class that it has, by strength, as that of classes that it lacks."""

    strength: float = 1.0
    """What the copied row is multiplied by."""
    classes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Classes to fabricate; by default all of which it has no sample."""

    def check(self, federation: Facts, labels: Tensor) -> None:
        if not len(labels):
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
        counts = torch.bincount(upload.labels, minlength=upload.federation.classes)
        known = int(counts.argmax())
        sent = dict(upload.trained)
        for name in upload.federation.head:
            rows = sent[name].clone()
            rows[self.fabricated(upload.federation, upload.labels)] = self.strength * rows[known]
            sent[name] = rows
        return sent
