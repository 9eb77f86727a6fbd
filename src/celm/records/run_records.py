"""Schemas of a run folder: rounds.jsonl, result.json, environment.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from celm.records.schema import Amount, FileRecord, Fraction, Schema

RUN_REMEDY = "run the experiment again from its settings.toml"


class Weighting(Schema):
    """The outcome of a rule in one round, by client."""

    weights: dict[str, float] | None
    """Aggregation weights."""
    client_weights: dict[str, float] | None
    """Smoothed, later frozen, weights of all known clients."""
    scores: dict[str, float] | None
    evidence: dict[str, list[Amount]] | None
    """Client to evidence by class; None in a round without a probe."""


class ObserverRecord(Weighting):
    """The outcome of an observer: a rule that computes weights but does not aggregate."""

    diagnostics: dict[str, Any]


class RoundRecord(FileRecord, Weighting):
    """The keys that rounds of a run and of a live federation share."""

    round: Annotated[int, Field(ge=1)]
    excluded: dict[str, str]
    """Client to the reason why its update was not used."""
    earned: dict[str, Fraction] = {}
    """Client to what it has earned until this round (celm.federation.earnings)."""
    flags: dict[str, dict[str, str]] = {}
    """Client to kind of flag to reason (celm.federation.flags)."""
    clipped: dict[str, Fraction] = {}
    """Client to the factor by which the filter shortened its update."""
    merge: str | None = None
    """Why the aggregated model was rejected; the global model then stayed unchanged."""


class RunRound(RoundRecord):
    """A line of rounds.jsonl. It has no times, so that a repeated run writes the same bytes."""

    remedy = RUN_REMEDY

    lr: float
    clients: list[str]
    """Clients that were selected."""
    diagnostics: dict[str, Any]
    observed: dict[str, ObserverRecord] = {}
    accuracy: Fraction | None = None
    """The accuracies are absent in rounds without evaluation."""
    balanced_accuracy: Fraction | None = None
    rare_class_accuracy: Fraction | None = None
    per_class: list[Fraction | None] | None = None
    client_accuracy: dict[str, Fraction] | None = None


CHECKSUM_FIELDS = {"files", "sha256"}
"""Fields of a result that say what it belongs to."""


class RunResult(FileRecord):
    """result.json. A run that has this file is finished."""

    remedy = RUN_REMEDY

    dataset: str
    split: str
    model: str
    rule: str
    objective: str
    seed: int
    rounds: int
    accuracy: Fraction
    """After the last round, on the test data."""
    balanced_accuracy: Fraction
    rare_class_accuracy: Fraction | None
    per_class: list[Fraction | None]
    client_accuracy: dict[str, Fraction] | None = None
    personal: bool = False
    """Whether each client has its own model; accuracies are then means over these models."""
    weights: dict[str, float]
    """Client to final weight."""
    evidence: dict[str, list[Amount]] | None
    """Client to evidence by class, when it was last probed; None for rules without evidence."""
    excluded: dict[str, str] = {}
    """Client to the reason for its last exclusion."""
    nonfinite: list[str] = []
    """Clients whose model returned a logit that is not finite."""
    observed: dict[str, dict[str, float] | None] = {}
    """Observer to the weights that it would have given."""
    classes: list[str]
    counts: dict[str, list[Annotated[int, Field(ge=0)]]]
    """Client to number of samples by class: the truth, which the server does not see."""
    rare_classes: list[int] = []
    free_riders: list[str] = []
    seconds: Amount
    files: dict[str, str] = {}
    """Name to SHA-256 of the other files of the run (celm.records.checksums); empty in older folders."""
    sha256: str | None = None
    """SHA-256 of these values, except the seconds; None in older folders."""

    @property
    def metrics(self) -> dict[str, Any]:
        """The values without checksums, as `celm run --format json` prints them."""
        return self.model_dump(exclude=CHECKSUM_FIELDS)

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        rows: list[Sequence[object]] = [
            *(self.evidence or {}).values(),
            *self.counts.values(),
            self.per_class,
        ]
        if not self.classes or any(len(row) != len(self.classes) for row in rows):
            raise ValueError("a row does not have one number for each class")
        if not self.weights:
            raise ValueError("weights: there are no clients")
        if any(not 0 <= k < len(self.classes) for k in self.rare_classes):
            raise ValueError("rare_classes: not an index of a class")
        return self


class EnvironmentStart(Schema):
    """Versions and host of one start of a run."""

    time: str
    versions: dict[str, str]
    python: str
    system: str
    machine: str
    cpu: str
    cores: int | None
    threads: int


class Environment(FileRecord):
    """environment.json: one entry for each start of the run."""

    reads_unversioned: ClassVar[bool] = True
    remedy = "delete it"

    starts: list[EnvironmentStart] = []
