"""Schemas of the state folder of a live federation: rounds, evaluations and failures (.jsonl), settings.json."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict

from celm.records.federation_amendments import Amendment
from celm.records.run_records import RoundRecord
from celm.records.schema import FileRecord, Schema

_FEDERATION_REMEDY = "use a new folder, or the celm version that wrote this one"


def _keep_strings(value: object) -> object:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


_ClientNames = Annotated[list[str], BeforeValidator(_keep_strings)]
"""A list of client names. Other values are dropped, because a rule may write anything into its diagnostics."""


def _keep_integers(value: object) -> object:
    return [k for k in value if isinstance(k, int)] if isinstance(value, list) else None


def _keep_fractions(value: object) -> object:
    if not isinstance(value, dict):
        return None
    return {
        name: number
        for name, number in value.items()
        if isinstance(name, str) and isinstance(number, int | float) and 0 <= number <= 1
    }


class Diagnostics(Schema):
    """The diagnostics of a rule that name clients or classes; a rule may add others."""

    idle: _ClientNames | None = None
    """None if the rule did not check which clients trained."""
    nonfinite: _ClientNames = []
    no_evidence: _ClientNames = []
    removed: _ClientNames = []
    probed: Annotated[list[int] | None, BeforeValidator(_keep_integers)] = None
    """The classes that the round probed; None for all."""
    agreement_scores: Annotated[dict[str, float] | None, BeforeValidator(_keep_fractions)] = None
    """Client to its score if claims are lowered where clients disagree; None if agreement was not measured."""


class ReceivedUpdate(Schema):
    sha256: str
    samples: int
    """As reported by the client."""


class FederationRound(RoundRecord):
    """A line of rounds.jsonl. `previous` chains it to the line before (see `celm.records.hash_chain`)."""

    remedy = _FEDERATION_REMEDY

    time: str
    """When the round ended."""
    asked: list[str]
    """Clients that were sent a model."""
    absent: list[str]
    """Known clients that were not connected."""
    keys: dict[str, str] = {}
    """Client to the fingerprint of its key, for all known clients; empty if `identify` is the user's own."""
    amendments: list[Amendment] = []
    """Settings that differ from those of the line before."""
    received: dict[str, ReceivedUpdate]
    unexpected: list[str] = []
    """Replies that answer no message of the round."""
    client_weights: dict[str, float]
    diagnostics: Diagnostics
    metrics: dict[str, Any] | None = None
    """Means of the metrics that clients reported."""
    metrics_excluded: dict[str, str] = {}
    """Client to why its metrics are left out of these means."""
    start: str
    """SHA-256 of the global model before the round."""
    model: str
    """SHA-256 of the global model after the round."""
    settings: str
    """SHA-256 of the settings of this round, as one line of JSON: settings.json with all amendments so far."""
    versions: dict[str, str]
    heads: dict[str, str] = {}
    """Digests of the last evaluation and failure before this line (see `celm.records.federation_chain`)."""
    witnesses: dict[str, str] = {}
    """Client to the digest of the signed head that it kept and returned (see `celm.records.signed`)."""
    salt: str | None = None
    """Random text that hides the leaves of clients (see `celm.records.signed.leaves`); None without a signing key."""
    previous: str
    """SHA-256 of the line before."""


class FederationSettings(FileRecord):
    """settings.json: everything that the results depend on, as it was in the first round."""

    model_config = ConfigDict(extra="allow")
    remedy = _FEDERATION_REMEDY

    rule: dict[str, Any]
    rounds: int
    classes: int
    seed: int


class EvaluationRecord(FileRecord):
    """A line of evaluations.jsonl: metrics of the global model after a round; round 0 is the initial model."""

    reads_unversioned = True
    remedy = _FEDERATION_REMEDY

    round: int
    clients: dict[str, Any] | None = None
    """Means of the metrics that clients reported."""
    server: dict[str, Any] | None = None
    """Metrics of the server's own evaluation."""
    excluded: dict[str, str] = {}
    """Client to why it is left out of the means."""
    capped: dict[str, str] = {}
    """Client to how its number of examples was reduced, so that no client has more than half of the weight."""
    config: dict[str, Any] | None = None
    """The evaluate config, if a subclass changed it."""
    heads: dict[str, str] = {}
    """Digests of the last round and failure before this line (see `celm.records.federation_chain`)."""
    previous: str | None = None
    """SHA-256 of the line before; None in a line of an older celm."""


class FailedAttempt(FileRecord):
    """A line of failures.jsonl: an attempt at a round that had too few usable replies."""

    remedy = _FEDERATION_REMEDY

    round: int
    attempt: int
    excluded: dict[str, str]
    unexpected: list[str] = []
    heads: dict[str, str] = {}
    """Digests of the last round and evaluation before this line (see `celm.records.federation_chain`)."""
    previous: str | None = None
    """SHA-256 of the line before; None in a line of an older celm."""
