"""Settings of an audit: everything besides the files that a result depends on. Quick to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.registry import describe_validation_error
from celm.base.renames import new_setting_name, renamed_hint
from celm.experiment.component_config import ConfigModel
from celm.experiment.config import ProbeConfig
from celm.models.adapter_settings import AdapterSettings, OutputKind

_FloatTuple = Annotated[tuple[float, ...], Field(strict=False)]


class RenamedSettingError(CelmError):
    """A setting by its name in older versions."""

    def __init__(self, old_name: str, new_name: str) -> None:
        super().__init__(f"unknown setting '{old_name}' of the audit", renamed_hint(new_name))


class AuditSettings(ConfigModel):
    """How models are read, probed and analysed."""

    model: str = ""
    """A name, package.module:factory, or a folder with a Hugging Face config.json; empty for a module in memory."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model."""
    input_shape: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = ()
    """Shape of one input, as in 1,28,28; by default the shape in the Hugging Face folder."""
    classes: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Names of the classes: the first outputs of the head."""
    head_outputs: PositiveInt | None = None
    """Outputs of the head, if it has more outputs than there are classes."""
    output: OutputKind | None = None
    """Output of the model; by default logits, which a trial forward pass checks."""
    mean: _FloatTuple = ()
    """Mean of each channel: inputs are probed before the normalisation (x - mean) / std."""
    std: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] = ()
    """Standard deviation of each channel."""
    bounds: Annotated[tuple[float, float], Field(strict=False)] | None = None
    """Smallest and largest value of an input."""
    argument: str | None = None
    """Name of the argument to probe, if the model has several."""
    fixed_inputs: str | None = None
    """A safetensors file with the other arguments by name, one sample of each."""
    layer: str | None = None
    """A layer, such as an embedding: its output is probed in place of the model's input."""
    partial: bool = False
    """Whether client files may contain a part of the tensors, such as an adapter; the others are the global model's."""
    evidence: Literal["paper", "calibrated", "head"] = "paper"
    """`paper`; `calibrated`, which scaling a model cannot raise; `head`, from the change of the last layer."""
    agreement: PositiveFloat | None = None
    """γ, with head evidence: also report scores whose claims are lowered by their disagreement with those of other
    clients to this power, such as 2."""
    movement: bool = True
    """Unless evidence is the paper's: whether clients that hardly moved the global model have none, and are flagged."""
    num_starts: Annotated[int, Field(ge=1, le=100)] = 5
    """R: random starts of each probe."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Joint confidence of all statements about holders, over the starts of the probe only."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Smoothing factor of the suggested weights over rounds."""
    probe: ProbeConfig = ProbeConfig()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    device: str = "cpu"
    threads: PositiveInt | None = None
    """CPU threads; by default one for a small model and all for a large one."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            duplicate = next(name for name in self.classes if self.classes.count(name) > 1)
            raise CelmError(f"classes: duplicate name '{duplicate}'")
        _ = self.adapters  # checks them
        if self.head_outputs is not None and self.head_outputs < len(self.classes):
            raise CelmError(f"head_outputs: {self.head_outputs} is less than {len(self.classes)} classes")
        if self.output == "sigmoid" and self.evidence != "paper":
            raise CelmError(
                f"output=sigmoid: {self.evidence} evidence compares classes, which a multi-label head does not make"
                " exclusive",
                "set evidence=paper",
            )
        if self.agreement is not None and self.evidence != "head":
            raise CelmError("agreement: only head evidence measures agreement", "set evidence=head")
        if self.fixed_inputs and not self.argument and not self.layer:
            raise CelmError("fixed_inputs: no input to probe", "set argument or layer")
        for name in ("tolerance", "classes", "keep_inputs"):
            if getattr(self.probe, name) != getattr(ProbeConfig(), name):
                raise CelmError(f"probe.{name}: not supported by the audit", "try probe=fast")
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> AuditSettings:
        """Build settings from plain values. None means the default. The first invalid setting is an error."""
        for name in values:
            if new_name := new_setting_name(name):
                raise RenamedSettingError(name, new_name)
        try:
            text = dump_json({name: value for name, value in values.items() if value is not None})
            return cls.model_validate_json(text)
        except (TypeError, ValueError) as error:
            if isinstance(error, ValidationError):
                raise CelmError(
                    *describe_validation_error(error, "", list(cls.model_fields), "the audit")
                ) from error
            raise CelmError(
                f"settings of the audit: {error}", "use text, numbers, lists and tables"
            ) from error

    @property
    def adapters(self) -> AdapterSettings:
        """The settings of the adapters, which are checked."""
        return AdapterSettings(self.output, self.mean, self.std, self.bounds, self.argument, self.layer)

    @property
    def detects_idle(self) -> bool:
        """Whether the audit checks which clients trained."""
        return self.movement and self.evidence != "paper"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, without those that are None."""
        return self.model_dump(mode="json", exclude_none=True)


def parse_class_names(classes: int | str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the classes, from their number, from names separated by commas, or from a list.

    >>> parse_class_names(3), parse_class_names("cat,dog"), parse_class_names("2")
    (('0', '1', '2'), ('cat', 'dog'), ('0', '1'))
    """
    if isinstance(classes, str):
        names = [name.strip() for name in classes.split(",")]
        if len(names) > 1:
            return tuple(names)
        if not names[0].isdecimal():
            raise CelmError(
                f"classes: '{classes}' is neither a number nor a list of names", "as in 10, or cat,dog"
            )
        classes = int(names[0])
    if isinstance(classes, int):
        if not 1 <= classes <= 100_000:
            raise CelmError(f"classes: {classes} is not between 1 and 100,000")
        return tuple(str(k) for k in range(classes))
    return tuple(classes)
