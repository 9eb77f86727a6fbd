"""Evidence models: how the logits of a probe become evidence Q, for the rule and for the audit.

PaperEvidence        q_ic = max(0, u_ic - b)                 Eq. 8-9, celm.core.evidence
CalibratedEvidence   from logits in units of their spread    celm.core.calibration
ClaimedEvidence      q_ic = f_ic, claims in place of logits  celm.core.head_evidence
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from celm.core.calibration import CalibratedLogits, calibrated_evidence
from celm.core.evidence import evidence
from celm.core.probe import ProbeTransform


class EvidenceModel(Protocol):
    """A probe transform, and the function that turns the results of such a probe into evidence."""

    @property
    def transform(self) -> ProbeTransform | None:
        """The transform of the probe; None for raw logits."""

    def __call__(
        self,
        client_logits: Tensor,
        global_logits: Tensor,
        measurements: Any = None,
        exclude: Tensor | None = None,
    ) -> Tensor:
        """Return Q `[N, K]` in float64 from client logits `[N, K]` and global logits `[K]`.

        `measurements` are those of the transform on the clients' models. Clients in the mask `exclude` `[N]` have no
        evidence.
        """


@dataclass(frozen=True)
class PaperEvidence:
    """Evidence as in the paper, max(0, u - b); without `debias`, max(0, u)."""

    debias: bool = True

    @property
    def transform(self) -> None:
        return None

    def __call__(
        self,
        client_logits: Tensor,
        global_logits: Tensor,
        measurements: Any = None,
        exclude: Tensor | None = None,
    ) -> Tensor:
        reference = global_logits if self.debias else torch.zeros_like(global_logits)
        Q = evidence(client_logits, reference)
        return Q if exclude is None else torch.where(exclude[:, None], 0.0, Q)


@dataclass(frozen=True)
class CalibratedEvidence:
    """Evidence that scaling a model cannot raise. Logits are gains, as `transform` makes the probe return them."""

    seed: int = 0
    """Seed of the noise inputs."""

    @property
    def transform(self) -> CalibratedLogits:
        return CalibratedLogits(self.seed)

    def __call__(
        self,
        client_logits: Tensor,
        global_logits: Tensor,
        measurements: Any = None,
        exclude: Tensor | None = None,
    ) -> Tensor:
        return calibrated_evidence(client_logits, measurements, exclude)


class ClaimedEvidence:
    """Evidence from the change of the last layer. Logits are claims f, so no probe is needed."""

    @property
    def transform(self) -> None:
        return None

    def __call__(
        self,
        client_logits: Tensor,
        global_logits: Tensor,
        measurements: Any = None,
        exclude: Tensor | None = None,
    ) -> Tensor:
        claims = client_logits.double()
        return claims if exclude is None else torch.where(exclude.to(claims.device)[:, None], 0.0, claims)
