"""Settings of the adapters between a probe and a model. Quick to import."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from celm.base.errors import CelmError

OutputKind = Literal["logits", "sigmoid", "softmax"]


@dataclass(frozen=True)
class AdapterSettings:
    """How inputs reach the model, and what it returns. The defaults need no adapter.

    >>> AdapterSettings(layer="embedding").non_defaults()
    {'layer': 'embedding'}
    """

    output: OutputKind | None = None
    """Output of the model; by default logits, which a trial forward pass checks."""
    mean: tuple[float, ...] = ()
    """Mean of each channel: inputs are probed before the normalisation (x - mean) / std."""
    std: tuple[float, ...] = ()
    """Standard deviation of each channel."""
    bounds: tuple[float, float] | None = None
    """Smallest and largest value of an input."""
    argument: str | None = None
    """Name of the argument to probe, if the model has several."""
    layer: str | None = None
    """A layer, such as an embedding: its output is probed in place of the model's input."""

    def __post_init__(self) -> None:
        if self.output is not None and self.output not in get_args(OutputKind):
            raise CelmError(
                f"output: unknown kind {self.output!r}", f"one of: {', '.join(get_args(OutputKind))}"
            )
        if len(self.mean) != len(self.std):
            raise CelmError(
                f"mean and std: {len(self.mean)} and {len(self.std)} numbers", "give one of each per channel"
            )
        if not all(value > 0 for value in self.std):
            raise CelmError(f"std: {min(self.std)} is not above 0")
        if self.bounds and not self.bounds[0] < self.bounds[1]:
            raise CelmError(f"bounds: {self.bounds[0]} is not below {self.bounds[1]}")

    def non_defaults(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
