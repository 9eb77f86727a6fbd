"""The settings of an audit: typed, closed, light to import; everything that a result depends on besides the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.registry import explain
from celm.federation.experiment import Probing, Table

Numbers = Annotated[tuple[float, ...], Field(strict=False)]


class Settings(Table):
    """How models are read, probed and judged."""

    model: str = ""
    """A name, package.module:factory, or a folder with a Hugging Face config.json; empty for a module in memory."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model."""
    input_shape: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = ()
    """Of one input, as in 1,28,28; a Hugging Face folder may say it itself."""
    classes: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Names of the classes, those of the head's first outputs."""
    head_outputs: PositiveInt | None = None
    """Outputs of the head, where it has more than there are classes."""
    returns: Literal["logits", "sigmoid", "softmax"] | None = None
    """What the model returns; by default logits, checked by a look at them."""
    mean: Numbers = ()
    """Of each channel: inputs are probed before the normalisation (x - mean) / std."""
    std: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] = ()
    bounds: Annotated[tuple[float, float], Field(strict=False)] | None = None
    """Least and greatest value of an input."""
    argument: str | None = None
    """Name of the model's argument that is probed, where it has several."""
    hold: str | None = None
    """A safetensors file with the other arguments, one sample of each, by name."""
    layer: str | None = None
    """Probe the output of this layer, such as an embedding, instead of the model's input."""
    partial: bool = False
    """Client files may hold a part of the tensors, such as an adapter; the rest is the global model's."""
    evidence: Literal["paper", "calibrated"] = "paper"
    """How logits become evidence: the paper's, or one that scaling a model cannot raise."""
    movement: bool = True
    """With calibrated evidence: who hardly moved the global model, which it was given, has none and is flagged."""
    starts: Annotated[int, Field(ge=1, le=100)] = 5
    """R: random starts of each probe."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """At which flags and sole holders hold, all clients together; of the probe only."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Smoothing of the suggested weights over rounds."""
    probe: Probing = Probing()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    device: str = "cpu"
    threads: PositiveInt | None = None
    """By default one for a small model, and as many as there are for a large one."""

    @model_validator(mode="after")
    def fit_together(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise CelmError("classes: every class can be named only once")
        if len(self.mean) != len(self.std):
            raise CelmError("mean and std go together: a number of each for every channel")
        if self.bounds and not self.bounds[0] < self.bounds[1]:
            raise CelmError(f"bounds: {self.bounds[0]} is not below {self.bounds[1]}")
        if self.head_outputs is not None and self.head_outputs < len(self.classes):
            raise CelmError(f"head_outputs: {self.head_outputs} is less than {len(self.classes)} classes")
        if self.hold and not self.argument and not self.layer:
            raise CelmError("hold: say which argument is probed", "by argument, or a layer")
        for name in ("tolerance", "classes", "keep"):
            if getattr(self.probe, name) != getattr(Probing(), name):
                raise CelmError(
                    f"probe.{name}: an audit probes every class, model by model", "try probe=fast"
                )
        return self

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Settings:
        """From plain values; None is left to its default, and the first thing wrong is an error that names it."""
        try:
            text = dump_json({name: value for name, value in given.items() if value is not None})
            return cls.model_validate_json(text)
        except (TypeError, ValueError) as error:
            if isinstance(error, ValidationError):
                raise CelmError(*explain(error, "", list(cls.model_fields), "an audit")) from error
            raise CelmError(f"a setting is of a kind that settings cannot have: {error}") from error

    @property
    def looks(self) -> bool:
        """Whether it is looked at who trained at all."""
        return self.movement and self.evidence == "calibrated"

    def tables(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)


def class_names(classes: int | str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """
    >>> class_names(3), class_names("cat,dog"), class_names("2")
    (('0', '1', '2'), ('cat', 'dog'), ('0', '1'))
    """
    if isinstance(classes, str):
        names = [name.strip() for name in classes.split(",")]
        if len(names) > 1:
            return tuple(names)
        if not names[0].isdecimal():
            raise CelmError(
                f"classes: '{classes}' is no number, and one class is none to tell from others",
                "as in 10, or cat,dog",
            )
        classes = int(names[0])
    if isinstance(classes, int):
        if not 1 <= classes <= 100_000:
            raise CelmError(f"classes: {classes} is not a number of classes")
        return tuple(str(k) for k in range(classes))
    return tuple(classes)
