"""Head evidence in the place of the probe of a round: the server reads the change of each client's last layer.

    f_ic(t)  = claims of round t, by the form `ball`; by `rows` if the head has no bias    celm.core.head_evidence
    Q_ic(t)  = mean of f_ic over the rounds so far that client i answered; an idle round counts as f_i = 0

With `agreement`, v_ic is measured in the first round of client i, among the clients of that round.
Only the global model is probed, so that idle clients can be detected at its inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import functional_call

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.core.head_evidence import (
    NOISE_INPUTS,
    HeadChanges,
    HeadForm,
    ball_claims,
    choose_form,
    peer_agreement,
    row_claims,
)
from celm.core.probe import model_noise
from celm.models.state_dict import StateDict
from celm.rules.celm_parts.class_sampler import ClassSampler, make_class_sampler
from celm.rules.celm_parts.round_probe import (
    GLOBAL_KEY,
    HeadClaims,
    ProbeState,
    RoundProbeResult,
    probe_global,
)
from celm.rules.messages import RoundData
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class HeadProbe:
    """The measurement of a round without a probe of the clients' models."""

    context: ServerContext
    warm_start: bool = True
    with_agreement: bool = False
    """Whether agreement between clients is measured."""

    @property
    def sampler(self) -> ClassSampler:
        """All classes."""
        return make_class_sampler(self.context.classes, None, self.context.seed)

    def run(self, state: ProbeState, round: RoundData) -> RoundProbeResult:
        """Measure the claims of the clients, in client order. The logits of the result are mean claims."""
        clients = natural_sorted(round.clients)
        changes, delivered = self._changes(round, clients)
        claims = self._claims(changes, round, first=not state.claims)
        warm_start = state.global_inputs if self.warm_start else None
        return RoundProbeResult(
            clients,
            range(self.context.classes),
            client_logits=torch.stack(
                [_add(state.claims.get(name), row).mean for name, row in zip(clients, claims, strict=True)]
            ),
            global_logits=torch.zeros(self.context.classes, dtype=torch.float64),
            client_inputs=None,
            global_inputs=probe_global(self.context, round.global_model, warm_start),
            measurements=claims,
            agreement=self._agreement(state, clients, changes, claims, delivered)
            if self.with_agreement
            else None,
        )

    def update(
        self, state: ProbeState, probe: RoundProbeResult, Q: Tensor
    ) -> tuple[ProbeState, dict[str, Tensor]]:
        """Return the state for the next round, and the claims `[K]` of each client in this one."""
        active = Q.any(dim=1, keepdim=True)
        claims = dict(zip(probe.clients, torch.where(active, probe.measurements, 0.0), strict=True))
        totals = {name: _add(state.claims.get(name), row) for name, row in claims.items()}
        if probe.agreement is not None:
            rows = zip(probe.clients, probe.agreement, strict=True)
            totals = {name: replace(totals[name], agreement=row) for name, row in rows}
        state = replace(state, global_inputs=probe.global_inputs, claims={**state.claims, **totals})
        return state, claims

    def _changes(self, round: RoundData, clients: list[str]) -> tuple[HeadChanges, Tensor]:
        """Return the changes of a round, and the delivered weights `[N, K, d]`."""
        delivered = [round.messages[name].model for name in clients]
        trained = [round.updates[name].model for name in clients]
        names = _head_names(self.context)
        weights = _stack(delivered, names["weight"]), _stack(trained, names["weight"])
        if "bias" not in names:
            return HeadChanges.between(*weights), weights[0]
        biases = _stack(delivered, names["bias"]), _stack(trained, names["bias"])
        return HeadChanges.between(*weights, *biases), weights[0]

    def _claims(self, changes: HeadChanges, round: RoundData, first: bool) -> Tensor:
        """Return f `[N, K]` of a round, on the CPU."""
        names = _head_names(self.context)
        if "bias" not in names:
            if first:
                self._require_rows(round.global_model, names["weight"])
            return row_claims(changes).cpu()
        if changes.bias is None:  # nobody trained it
            return torch.zeros(changes.weight.shape[:2], dtype=torch.float64)
        return ball_claims(changes).cpu()

    def _agreement(
        self, state: ProbeState, clients: list[str], changes: HeadChanges, claims: Tensor, delivered: Tensor
    ) -> Tensor:
        """Return v `[N, K]` of each client's first round, on the CPU."""
        measured = peer_agreement(changes, claims.to(changes.weight.device), delivered).cpu()
        earlier = [state.claims[name].agreement if name in state.claims else None for name in clients]
        return torch.stack([row if v is None else v for row, v in zip(measured, earlier, strict=True)])

    def _require_rows(self, global_model: StateDict, weight_name: str) -> HeadForm:
        """Raise CelmError if features can be negative, which the form `rows` does not allow."""
        layer = weight_name.rpartition(".")[0]
        noise = model_noise(self.context.seed, GLOBAL_KEY, NOISE_INPUTS, self.context.input_shape)
        return choose_form(False, layer_inputs(self.context, global_model, layer, noise))


@torch.no_grad()
def layer_inputs(context: ServerContext, state: StateDict, layer: str, inputs: Tensor) -> Tensor:
    """Return what a layer receives when the model with this state is applied to inputs."""
    module, received = copy.deepcopy(context.module).eval(), []
    module.get_submodule(layer).register_forward_pre_hook(lambda _, arguments: received.append(arguments[0]))
    device = next(module.parameters()).device
    functional_call(module, {name: value.to(device) for name, value in state.items()}, (inputs.to(device),))
    features: Tensor = received[0]
    return features.reshape(-1, features.shape[-1])


def _head_names(context: ServerContext) -> Mapping[str, str]:
    """Return the names of the head's tensors by `weight` and `bias`; raise CelmError if clients do not exchange it."""
    names = {name.rpartition(".")[2]: name for name in context.head}
    if "weight" not in names:
        raise CelmError(
            "rule.evidence: head evidence needs the last linear layer, which clients do not exchange",
            "use calibrated evidence",
        )
    return names


def _stack(states: list[StateDict], name: str) -> Tensor:
    return torch.stack([state[name].detach() for state in states])


def _add(earlier: HeadClaims | None, claims: Tensor) -> HeadClaims:
    return HeadClaims(claims, 1) if earlier is None else earlier.add(claims)
