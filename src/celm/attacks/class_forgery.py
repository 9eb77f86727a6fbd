"""What attacks that forge evidence for classes have in common: which classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from celm.attacks.attack import Attack
from celm.base.errors import CelmError
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class ClassForgery(Attack):
    """Base of attacks that change the head's rows of some classes."""

    classes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Classes to forge; by default all of which it has no samples."""

    def check(self, context: ServerContext, labels: Tensor) -> None:
        unknown = [k for k in self.classes or () if k >= context.classes]
        if unknown:
            raise CelmError(
                f"attack.classes: unknown class {unknown[0]}", f"classes are 0 to {context.classes - 1}"
            )
        if not self.forged_classes(context, labels):
            raise CelmError(
                f"attack of {self.client}: the client has samples of every class",
                "set attack.classes to the classes to forge",
            )

    def forged_classes(self, context: ServerContext, labels: Tensor) -> list[int]:
        """Return the classes whose rows are changed."""
        if self.classes is not None:
            return list(self.classes)
        classes_with_samples = set(labels.tolist())
        return [k for k in range(context.classes) if k not in classes_with_samples]
