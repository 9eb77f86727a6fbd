"""From the probes of a round to evidence, scores and flags, with standard errors.

    u [R, N, K], g [R, K]     logits of N clients and of the model they started from, R starts of the probe
    Q, shares, scores         from the mean logits over starts (celm.core.evidence_models)
    SE(x)                     = std_r(x^r) / sqrt(R),  x^r the value from start r alone, ddof 1
    distribution              = Q / Σ Q                             estimated client x class distribution

With head evidence, Q is the mean of the claims over rounds (celm.auditing.head_claims). Scores then do not depend on
the probe, so they have no standard error.

All models start from the same R draws of noise, so that differences between clients come from their models. A standard
error is over starts of the probe: it does not cover variation of data or training.

**Holdings.** A client holds class k if its model can be driven further for k than the model it started from:
d_ik = u_ik - g_k is positive. Whether that is sure, possible or not the case is decided by the test of
celm.core.class_holders on the R values of d, as is the **sole holder** of a class. Evidence compares all classes with
one level; d has a level for each class, so it does not depend on how high a class can be driven.

**Free-rider.** A flag cannot use a z-score: among N clients it never falls below -sqrt(N - 1), and among many clients
some score is always low. The z-score is shown; the flag is a statement about the client itself. Every held class is
divided equally among its holders; a client's part of all held classes is its coverage. Coverage favours the
client: a class that it possibly holds counts as its own, and a class that another client only possibly holds does not
count as the other's. A client is flagged if

- its coverage is below half of an equal share, 1 / (2 N), and it is not the sole holder of any class: it adds
  little, and nothing that others do not add; or
- its tensors are those of the global model, or of another client: these facts need no probe; or
- unless evidence is the paper's, it hardly moved the global model (celm.core.idle_detection): scaling a copy is not
  training. It then has no evidence and holds no class, for any logits.

So an honest client with few and common classes is flagged like a free-rider with the same data: their models do not
differ. With one start there is no standard error, and no statement that needs one. With one client there is nothing to
share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celm.auditing.settings import AuditSettings
from celm.core.calibration import CalibratedLogits, Calibration
from celm.core.class_holders import ClassHolders, class_holders
from celm.core.evidence import bias, scores, shares
from celm.core.evidence_models import CalibratedEvidence, ClaimedEvidence, EvidenceModel, PaperEvidence
from celm.core.idle_detection import IDLE_THRESHOLD, is_idle
from celm.metrics.free_riders import z_scores
from celm.rules.celm_parts.idle import movement_by_client
from celm.rules.celm_parts.round_probe import HeadClaims

_MIN_COVERAGE = 0.5
"""Fraction of an equal share below which a client's coverage is low."""

_FloatArray = NDArray[np.float64]
_BoolArray = NDArray[np.bool_]
_EvidenceFn = Callable[[Tensor, Tensor], Tensor]
"""Client logits `[N, K]` and global logits `[K]` to evidence `[N, K]`."""


@dataclass(frozen=True)
class DuplicateUpload:
    """An upload whose tensors are those of another model."""

    original: str | None
    """The client with the same tensors; None for the global model."""

    @property
    def reason(self) -> str:
        """The flag of the client."""
        if self.original is None:
            return "returned the model it was given, unchanged"
        return f"sent the same tensors as {self.original}"


@dataclass(frozen=True)
class Findings:
    """The findings of one round, with clients in client order."""

    evidence: dict[str, list[float]]
    shares: dict[str, list[float]]
    distribution: dict[str, list[float]]
    scores: dict[str, float]
    agreement_scores: dict[str, float] | None
    """Scores with claims lowered where clients disagree; None if agreement was not measured."""
    probe_standard_errors: dict[str, float | None]
    z_scores: dict[str, float]
    holds: dict[str, list[str]] | None
    """Classes that each client surely holds; None with one start."""
    possibly_holds: dict[str, list[str]] | None
    """Further classes, which each client possibly holds; None with one start."""
    sole_holders: dict[str, str]
    """Client by class."""
    flags: dict[str, str]
    bias: float
    movement: dict[str, float | None] | None
    """Movement of each client, None if there is no client to compare with; None as a whole if it was not measured."""


def make_evidence_model(settings: AuditSettings) -> EvidenceModel:
    """Return the evidence model of the probe; the probe of head evidence is the paper's."""
    return CalibratedEvidence(settings.seed) if settings.evidence == "calibrated" else PaperEvidence()


def find_duplicates(global_digest: str, digests: Mapping[str, str]) -> dict[str, DuplicateUpload]:
    """Return the uploads whose tensors are those of the global model or of another client, by digest.

    >>> find_duplicates("g", {"a": "x", "b": "g", "c": "x"})
    {'b': DuplicateUpload(original=None), 'c': DuplicateUpload(original='a'), 'a': DuplicateUpload(original='c')}
    """
    first_sender: dict[str, str | None] = {global_digest: None}
    duplicates: dict[str, DuplicateUpload] = {}
    for name, digest in digests.items():
        if digest not in first_sender:
            first_sender[digest] = name
            continue
        original = first_sender[digest]
        duplicates[name] = DuplicateUpload(original)
        if original is not None:
            duplicates.setdefault(original, DuplicateUpload(name))
    return duplicates


def analyse(
    client_logits: Mapping[str, Tensor],
    global_logits: Tensor,
    duplicates: Mapping[str, DuplicateUpload],
    settings: AuditSettings,
    calibrations: Sequence[Calibration] = (),
    movement: Tensor | None = None,
    claims: Sequence[HeadClaims] | None = None,
) -> Findings:
    """Analyse the raw logits `[R, K]` of the clients and of the model they started from, in client order.

    `calibrations` are those of the clients' models, for calibrated evidence. `movement` `[N]` is how far each client
    moved the global model, if that was measured. `claims` replace the logits as evidence; holdings are still those of
    the probe.
    """
    names = list(client_logits)
    u = torch.stack([client_logits[name].double() for name in names], dim=1)
    g = global_logits.double()
    idle_mask = torch.zeros(len(names), dtype=torch.bool) if movement is None else is_idle(movement)
    mean_claims = None if claims is None else torch.stack([client.mean for client in claims])
    evidence_fn = _make_evidence_fn(settings, calibrations, idle_mask, mean_claims)
    Q = evidence_fn(u.mean(dim=0), g.mean(dim=0))
    score_by_client = dict(zip(names, scores(Q).tolist(), strict=True))
    samples = [] if claims is not None else [scores(evidence_fn(u[r], g[r])).numpy() for r in range(len(g))]
    error = _standard_error(samples)
    errors = dict(zip(names, [None] * len(names) if error is None else error.tolist(), strict=True))
    holders = class_holders((u - g[:, None]).numpy(), settings.confidence)
    holders = None if holders is None else holders.without(idle_mask.numpy())
    sole_holders = {} if holders is None else holders.sole_holders()
    z = z_scores(score_by_client)
    movements = None if movement is None else movement_by_client(names, movement)
    flags = {name: duplicates[name].reason for name in names if name in duplicates}
    for name, reason in _flag_idle(movements or {}).items():
        flags.setdefault(name, reason)
    for i, reason in ({} if holders is None else _flag_low_coverage(holders, sole_holders)).items():
        name = names[i]
        score_text = f"{100 * score_by_client[name]:.1f}" + (
            "" if error is None else f" ± {100 * error[i]:.1f}"
        )
        flags.setdefault(name, f"{reason} (score {score_text} %, z-score {z[name]:.2f})")
    total = float(Q.sum())
    return Findings(
        evidence=_rows_by_client(names, Q),
        shares=_rows_by_client(names, shares(Q)),
        distribution=_rows_by_client(names, Q / total if total > 0 else Q),
        scores=score_by_client,
        agreement_scores=_agreement_scores(names, Q, claims or (), settings.agreement),
        probe_standard_errors=errors,
        z_scores={name: z[name] for name in names},
        holds=None if holders is None else _classes_by_client(holders.certain, names, settings.classes),
        possibly_holds=None
        if holders is None
        else _classes_by_client(holders.possible & ~holders.certain, names, settings.classes),
        sole_holders={settings.classes[k]: names[i] for k, i in sole_holders.items()},
        flags={name: flags[name] for name in names if name in flags},
        bias=float(bias(g.mean(dim=0))),
        movement=movements,
    )


def _make_evidence_fn(
    settings: AuditSettings, calibrations: Sequence[Calibration], idle_mask: Tensor, claims: Tensor | None
) -> _EvidenceFn:
    """Return the function from raw logits to evidence. Idle clients `[N]` have none."""
    if claims is not None:
        return lambda *_: ClaimedEvidence()(claims, claims[0], exclude=idle_mask)
    evidence_model = make_evidence_model(settings)
    if settings.evidence == "paper":
        return lambda clients, reference: evidence_model(clients, reference, exclude=idle_mask)
    calibration = CalibratedLogits(settings.seed).concat(calibrations, range(len(settings.classes)))
    return lambda clients, reference: evidence_model(
        calibration.standardise(clients), reference, calibration, idle_mask
    )


def _agreement_scores(
    names: Sequence[str], Q: Tensor, claims: Sequence[HeadClaims], exponent: float | None
) -> dict[str, float] | None:
    """Return the scores of v^γ Q; None if agreement was not measured."""
    measured = [client.agreement for client in claims if client.agreement is not None]
    if exponent is None or len(measured) < len(names):
        return None
    return dict(zip(names, scores(Q * torch.stack(measured) ** exponent).tolist(), strict=True))


def _standard_error(samples: Sequence[_FloatArray] | _FloatArray) -> _FloatArray | None:
    """Return the standard error of the mean over starts; None for a single start."""
    if len(samples) < 2:
        return None
    return np.asarray(np.std(samples, axis=0, ddof=1) / math.sqrt(len(samples)), dtype=np.float64)


def _flag_idle(movement: Mapping[str, float | None]) -> dict[str, str]:
    """Return the flags of clients that did not train."""
    return {
        name: f"did not train: it moved by {value:.2f} of the median, less than {IDLE_THRESHOLD}"
        for name, value in movement.items()
        if value is not None and value < IDLE_THRESHOLD
    }


def _flag_low_coverage(holders: ClassHolders, sole_holders: Mapping[int, int]) -> dict[int, str]:
    """Return the flags of clients that add little and are not the sole holder of any class, by index."""
    count, classes = holders.certain.shape
    if count < 2 or not holders.certain.any():
        return {}
    reasons = {}
    for i, coverage in enumerate(holders.coverage()):
        if coverage < _MIN_COVERAGE / count and i not in sole_holders.values():
            holdings = (
                f"holds at most {int(holders.possible[i].sum())} of {classes} classes, none of them alone"
            )
            threshold = f"less than half of an equal share of {100 / count:.1f} %"
            reasons[i] = f"{holdings}: {100 * coverage:.1f} % of the held classes, {threshold}"
    return reasons


def _rows_by_client(names: Sequence[str], table: Tensor) -> dict[str, list[float]]:
    return dict(zip(names, table.tolist(), strict=True))


def _classes_by_client(
    mask: _BoolArray, names: Sequence[str], classes: Sequence[str]
) -> dict[str, list[str]]:
    return {
        name: [classes[k] for k in np.flatnonzero(row).tolist()]
        for name, row in zip(names, mask, strict=True)
    }
