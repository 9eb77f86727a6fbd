"""CFFL: reputation by validation accuracy, sharpened by sinh, with removal of clients.

    ĉ_i = v_i / Σ_{j∈R} v_j                        v_i: validation accuracy of client i's model
    c_i ← sinh(α (0.8 c_i + 0.2 ĉ_i)), scaled to sum 1
    client i with c_i < κ / |R| leaves R for good, and c is scaled again      κ = 1/3
    w_g = Σ_{i∈R} c_i w_i                          all clients, also removed ones, get this model

Reference: Lyu, Xu, Wang and Yu, Collaborative Fairness in Federated Learning, in Federated Learning, Springer
2020, and its code. The formulas above are `mode = "aggregation"`, the default: reputations are aggregation weights.
The CELM paper's comparison seems to have used this mode. The source's protocol is `mode = "paper"`:

    Δ_i is clipped to [-g, g] value by value; upload d_i: its largest θ fraction by magnitude
    v_i: accuracy of w_g + d_i, or of client i's own model if θ = 1;          w_g ← w_g + Σ_{i∈R} d_i
    next model of client i in R: m_i + clipped Δ_i - d_i + the largest ⌊(c_i / max c)(n_i / max n) P⌋ values of Σ d_j
    next model of other clients: m_i + clipped Δ_i                            m_i: the model sent to client i

Reputation starts at 0. α = 5 is the source's. With `decay`, the source's name, α grows from α to 2α over the run (on
for MNIST and Adult). Earlier versions of the source use `fade = 0.2`, and its class-imbalance split uses κ = 1/6.
Near uniform, a round multiplies relative deviations by 0.8 x coth x, x = α/N. This is above 1 for five clients, so
reputations diverge even if all clients are alike.

In the code, sinh is applied to the reputation in every round. With `sharpen = "share"` it is applied to ĉ_i:
c_i ← 0.8 c_i + 0.2 sinh(α ĉ_i) / Σ_j sinh(α ĉ_j). This does not diverge. We believe that CFFL's text says this, but
have not checked it.

Deviations of `paper`: clients send complete models, and the server clips and selects for them. Downloads are the
largest values, never random ones. Ties at a cut are kept. There is no pre-training. Buffers are averaged, and a
client keeps its own. Aggregation weights are equal over R, as they are used; the client weights are c.

Deviations of both modes: accuracies that are all 0 count as equal. The present clients divide their total reputation
among themselves. Absent clients keep theirs and are not removed. A newcomer starts at the mean of R. R is never
emptied. If no present client is in R, the global model does not change and the weights, which are then unused, are
uniform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from celm.base.errors import CelmError
from celm.core.weights import ClientWeights, normalise_weights
from celm.metrics.accuracy import compute_accuracy
from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled
from celm.rules.messages import RoundData, ServerMessage
from celm.rules.reputation import remove_low_reputation, share_reputation
from celm.rules.rule import Requirements, Rule, ServerContext, WeightingResult
from celm.rules.update_ops import (
    average_deltas,
    client_delta,
    kth_largest_magnitude,
    parameter_names,
    zero_below,
)


@dataclass(frozen=True)
class CfflState:
    """The reputations of R, the removed clients, and in mode `paper` every client's own model."""

    parameters: tuple[str, ...] = ()
    weights: ClientWeights = field(default_factory=ClientWeights)
    removed: tuple[str, ...] = ()
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class _ClippedUpload:
    """Mode `paper`: a client's upload d_i, and its model after the clipped change."""

    upload: StateDict
    model: StateDict


@dataclass(frozen=True)
class Cffl(Rule[CfflState]):
    """Reputation by accuracy; clients with low reputation are removed.

    Accuracy is on validation data, sharpened by sinh.
    """

    requirements: ClassVar[Requirements] = Requirements(validation=True, sizes=True)
    state_type: ClassVar[type] = CfflState

    mode: Literal["aggregation", "paper"] = "aggregation"
    """`aggregation`: reputations are weights; `paper`: clipped uploads, and rewards by reputation."""
    alpha: Annotated[float, Field(gt=0, le=100)] = 5.0
    """α, the sharpness of reputations."""
    sharpen: Literal["reputation", "share"] = "reputation"
    """Argument of sinh: the reputation in every round, or only the share of this round."""
    decay: bool = False
    """Whether alpha grows to its double over the run."""
    fade: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """Share of the old reputation in the new one."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1 / 3
    """κ: clients below this fraction of the mean reputation are removed."""
    clip: Annotated[float, Field(gt=0)] = 0.01
    """g of mode paper, the largest change of a value; the source's for MNIST (0.001 for CIFAR-10)."""
    theta: Annotated[float, Field(gt=0, le=1)] = 0.1
    """θ of mode paper, the fraction of its changes that a client uploads."""

    @property
    def continues_from_upload(self) -> bool:
        return self.mode == "paper"

    @property
    def depends_on_rounds(self) -> bool:
        return self.decay

    def init(self, context: ServerContext) -> CfflState:
        return CfflState(parameter_names(context))

    def compute_weights(
        self, state: CfflState, context: ServerContext, round: RoundData
    ) -> WeightingResult[CfflState]:
        names = round.clients
        clipped_uploads = (
            {name: self._make_upload(state, round, name) for name in names} if self.mode == "paper" else {}
        )
        accuracy = self._validation_accuracy(round, clipped_uploads)
        trusted = [name for name in names if name not in state.removed]
        previous = state.weights.with_clients(trusted)
        reputation, removed = previous, state.removed
        if trusted:
            contribution = normalise_weights({name: accuracy[name] for name in trusted})
            present_total = math.fsum(previous.by_client[name] for name in trusted)
            old_reputation = previous.by_client if state.weights.by_client else dict.fromkeys(names, 0.0)
            alpha = self.alpha * (1 + (round.round_number - 1) / context.rounds if self.decay else 1)
            sharpened = {name: math.sinh(alpha * contribution[name]) for name in trusted}
            new_share = contribution if self.sharpen == "reputation" else normalise_weights(sharpened)
            mixed = {
                name: self.fade * old_reputation[name] + (1 - self.fade) * present_total * new_share[name]
                for name in trusted
            }
            if self.sharpen == "reputation":
                mixed = {name: math.sinh(alpha * value) for name, value in mixed.items()}
            reputation, removed_now = remove_low_reputation(
                share_reputation(previous, mixed), trusted, self.threshold
            )
            removed += removed_now
        active = [name for name in names if name not in removed]
        active_weights = (
            reputation.restricted_to(active) if self.mode == "aggregation" else dict.fromkeys(active, 1.0)
        )
        models = {**state.models, **self._rewarded_models(round, clipped_uploads, reputation, active)}
        return WeightingResult(
            CfflState(state.parameters, reputation, removed, models),
            aggregation_weights=normalise_weights({name: active_weights.get(name, 0.0) for name in names}),
            client_weights=normalise_weights({**reputation.by_client, **dict.fromkeys(removed, 0.0)}),
            scores=normalise_weights(accuracy),
            diagnostics={"accuracy": accuracy, "removed": list(removed)},
        )

    def aggregate(self, state: CfflState, round: RoundData, result: WeightingResult[CfflState]) -> StateDict:
        active = [name for name in round.clients if name not in result.state.removed]
        if not active:
            return round.global_model
        weights = result.aggregation_weights
        if self.mode == "aggregation":
            return round.average(
                [round.updates[name].model for name in active], [weights[name] for name in active]
            )
        uploads = {name: self._make_upload(state, round, name).upload for name in active}
        total = average_deltas(round, uploads, weights)
        global_parameters = {name: round.global_model[name] for name in state.parameters}
        return {**total, **add_scaled(global_parameters, total, scale=len(active))}

    def message_for(self, state: CfflState, model: StateDict, client: str) -> ServerMessage:
        return ServerMessage(state.models.get(client, model))

    def _validation_accuracy(
        self, round: RoundData, clipped_uploads: Mapping[str, _ClippedUpload]
    ) -> dict[str, float]:
        """Return the validation accuracy of every present client."""
        if round.validate is None:
            raise CelmError("rule 'cffl' needs validation data", "set 'run.validation'")
        if not clipped_uploads:
            models = [update.model for update in round.updates.values()]
        elif self.theta == 1:
            models = [clipped.model for clipped in clipped_uploads.values()]
        else:
            models = [add_scaled(round.global_model, clipped.upload) for clipped in clipped_uploads.values()]
        counts = round.validate(models)
        return {
            name: compute_accuracy(count).accuracy for name, count in zip(round.clients, counts, strict=True)
        }

    def _make_upload(self, state: CfflState, round: RoundData, client: str) -> _ClippedUpload:
        clipped_delta = {
            name: tensor.clamp(-self.clip, self.clip)
            for name, tensor in client_delta(round, client, state.parameters).items()
        }
        upload = _top_k_overall(clipped_delta, int(self.theta * _num_values(clipped_delta)))
        received_parameters = {name: round.messages[client].model[name] for name in state.parameters}
        model = {**round.updates[client].model, **add_scaled(received_parameters, clipped_delta)}
        return _ClippedUpload(upload, model)

    def _rewarded_models(
        self,
        round: RoundData,
        clipped_uploads: Mapping[str, _ClippedUpload],
        reputation: ClientWeights,
        active: list[str],
    ) -> dict[str, StateDict]:
        """Return the next model of every present client; empty if all get the global model."""
        models = {name: clipped.model for name, clipped in clipped_uploads.items()}
        if not clipped_uploads or not active:
            return models
        uploads = {name: clipped_uploads[name].upload for name in active}
        total = average_deltas(round, uploads, dict.fromkeys(active, 1.0))
        names = uploads[active[0]]
        total_upload = {name: total[name] * len(active) for name in names}
        highest = max(reputation.by_client[name] for name in active)
        max_examples = max(round.updates[name].num_examples for name in active)
        for name in active:
            relative_reputation = reputation.by_client[name] / highest if highest > 0 else 1.0
            relative_size = (
                max(round.updates[name].num_examples, 0) / max_examples if max_examples > 0 else 1.0
            )
            reward = _top_k_overall(
                total_upload, int(relative_reputation * relative_size * _num_values(total_upload))
            )
            models[name] = add_scaled(add_scaled(models[name], reward), uploads[name], scale=-1)
        return models


def _num_values(delta: StateDict) -> int:
    return sum(tensor.numel() for tensor in delta.values())


def _top_k_overall(delta: StateDict, count: int) -> StateDict:
    """Keep the `count` largest values by magnitude over all tensors, with ties; set the others to zero."""
    magnitude = kth_largest_magnitude(list(delta.values()), count)
    return {name: zero_below(tensor, magnitude) for name, tensor in delta.items()}
