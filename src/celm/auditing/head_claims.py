"""Head evidence of an audit: claims from the change of the last layer of the clients' files.

f_ic(t)  = claims of round t     celm.core.head_evidence
Q_ic(t)  = mean of f_ic over the rounds so far that have a file of client i, as in the rule `celm`
v_ic     = agreement with other clients, in the first round that has a file of client i
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from celm.auditing.settings import AuditSettings
from celm.base.errors import CelmError
from celm.core.head_evidence import NOISE_INPUTS, head_evidence
from celm.core.probe import model_noise
from celm.models.heads import extract_features, find_head, head_keys
from celm.models.state_dict import StateDict

_HINT = "set evidence=calibrated"


@dataclass(frozen=True)
class HeadReader:
    """Reads claims from last layers."""

    module: nn.Module
    """The model of the audit, as it is probed. Its tensors are those of the current global model."""
    settings: AuditSettings
    head: str
    """Qualified name of the last layer."""

    @classmethod
    def for_model(cls, module: nn.Module, settings: AuditSettings) -> HeadReader:
        """Find the last layer; raise CelmError if the model has none that allows head evidence."""
        try:
            head = find_head(module, settings.head_outputs or len(settings.classes))
        except CelmError as error:
            raise CelmError(f"evidence=head: {error}", _HINT) from error
        return cls(module, settings, head)

    def select(self, state: Mapping[str, Tensor]) -> StateDict:
        """Return a copy of the tensors of the last layer."""
        return {name: state[name].clone() for name in head_keys(self.module, self.head)}

    def claims(self, delivered: StateDict, clients: Mapping[str, StateDict]) -> Tensor:
        """Return f `[N, K]` from the last layers of the global model and of the clients."""
        return self._read(delivered, clients)

    def agreement(self, delivered: StateDict, clients: Mapping[str, StateDict], claims: Tensor) -> Tensor:
        """Return v `[N, K]` of the claims f of this round; 0 for a class without a claim."""
        agreed = self._read(delivered, clients, agreement=1.0)
        return torch.where(claims > 0, agreed / torch.where(claims > 0, claims, 1.0), 0.0)

    def _read(self, delivered: StateDict, clients: Mapping[str, StateDict], agreement: float = 0.0) -> Tensor:
        changed = {
            name
            for name, tensor in delivered.items()
            for client in clients.values()
            if not torch.equal(tensor, client[name])
        }
        if not changed:
            raise CelmError(f"evidence=head: no client changed the last layer '{self.head}'", _HINT)
        prefix = f"{self.head}." if self.head else ""
        features = None if prefix + "bias" in changed else self._features()
        try:
            claims = head_evidence(
                delivered,
                list(clients.values()),
                head=self.head,
                features=features,
                agreement=agreement,
            )
        except CelmError as error:
            raise CelmError(f"evidence=head: {error}", _HINT) from error
        return claims[:, : len(self.settings.classes)].cpu()

    @torch.no_grad()
    def _features(self) -> Tensor:
        """Return what the last layer receives for noise inputs `[n, d]`."""
        settings = self.settings
        noise = model_noise(settings.seed, "head", NOISE_INPUTS, settings.input_shape).to(settings.device)
        features = extract_features(self.module, self.head, noise)
        return features.reshape(-1, features.shape[-1])
