"""View models of a run and of a live federation, for pages and figures. `celm.records` has read and checked them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celm.core.class_holders import ClassClaims
from celm.records.class_evidence import claims_from_records
from celm.records.federation_files import read_federation
from celm.records.metric_series import metric_series
from celm.records.run_files import RunFiles

if TYPE_CHECKING:
    from torch import Tensor


class RunView:
    """A finished run."""

    def __init__(self, path: Path) -> None:
        files = RunFiles.open(path)
        run = files.read_finished()
        self.path = path
        self.experiment = run.experiment
        self.result = run.result
        self.rounds = run.rounds
        self.environments = [start.model_dump() for start in files.environments()]
        self.evidence = self.result.evidence
        """Evidence of the rule, or of the first observer that has evidence."""
        self.evidence_rule: str | None = None
        """The observer that computed the evidence; None for the rule itself."""
        for observer in self.result.observed if self.evidence is None else ():
            if observed_evidence := self._observer_evidence(observer):
                self.evidence, self.evidence_rule = observed_evidence, observer
                break

    def _observer_evidence(self, observer: str) -> dict[str, list[float]]:
        """Return the evidence of each client when the observer last probed it."""
        evidence: dict[str, list[float]] = {}
        for record in self.rounds:
            if observer in record.observed:
                evidence |= record.observed[observer].evidence or {}
        return {client: evidence[client] for client in self.result.weights if client in evidence}

    @property
    def claims(self) -> ClassClaims | None:
        """What the probed rounds show about each client's classes; None with too few of them."""
        return None if self.evidence is None else claims_from_records(self.records, self.evidence_rule)

    @property
    def evidence_settings(self) -> Mapping[str, Any]:
        """Settings of the rule that computed the evidence."""
        observers = [choice for choice in self.experiment.observe if choice.name == self.evidence_rule]
        return (observers[0] if observers else self.experiment.rule).options

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rounds, as the functions that draw figures take them."""
        return [record.model_dump() for record in self.rounds]

    def probe_inputs(self) -> dict[str, Tensor] | None:
        """Return client to the inputs `[K, *shape]` at which its last probe ended; None if nothing was probed."""
        return RunFiles(self.path).probe_inputs()


class FederationView:
    """A live federation, from its state folder."""

    def __init__(self, path: Path) -> None:
        record = read_federation(path)
        self.path = path
        self.digest = record.digest
        """Digest of the last line of the record."""
        self.settings = record.settings
        self.raw_settings = record.settings.model_dump(exclude={"schema_version"})
        """All settings, including keys that the schema does not name."""
        self.rounds = record.rounds
        self.failures = record.failures
        self.evaluations = record.evaluations
        self.metrics = metric_series(
            [line.model_dump() for line in record.evaluations],
            [line.model_dump(include={"round", "metrics"}) for line in record.rounds],
        )
        """Metrics over the rounds, of evaluations and of training."""
        self.last_probed = next((record for record in reversed(self.rounds) if record.evidence), None)
        """The last round with a probe."""

    @property
    def weights(self) -> dict[str, float]:
        return self.rounds[-1].client_weights

    @property
    def evidence(self) -> dict[str, list[float]] | None:
        return None if self.last_probed is None else self.last_probed.evidence

    @property
    def claims(self) -> ClassClaims | None:
        """What the probed rounds show about each client's classes; None with too few of them."""
        return claims_from_records(record.model_dump() for record in self.rounds)

    @property
    def classes(self) -> list[str]:
        """Numbers of the classes, as text; empty if nothing was probed."""
        return [str(k) for k in range(self.settings.classes)] if self.last_probed else []
