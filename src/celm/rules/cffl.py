"""CFFL: reputation by validation accuracy, sharpened by sinh, with removal.

    ĉ_i = v_i / Σ_{j∈R} v_j                        v_i: validation accuracy of client i's model
    c_i ← sinh(α (0.8 c_i + 0.2 ĉ_i)), scaled to sum 1
    who has c_i < κ / |R| leaves R for good, and c is scaled again            κ = 1/3
    w_g = Σ_{i∈R} c_i w_i                          everybody, also who left, gets the whole model

Reference: Lyu, Xu, Wang and Yu, Collaborative Fairness in Federated Learning, in Federated Learning, Springer
2020, and its code. That is `mode = "aggregation"`, the default: reputations as aggregation weights, which is
what the CELM paper's comparison seems to have used. What the source does is `mode = "paper"`:

    Δ_i clipped to [-g, g] value by value; upload d_i: its largest θ fraction by magnitude
    v_i: accuracy of w_g + d_i, of client i's own model where θ = 1;          w_g ← w_g + Σ_{i∈R} d_i
    client i in R goes on from its own model + clipped Δ_i - d_i + the largest ⌊(c_i / max c)(n_i / max n) P⌋
    values of Σ d_j; others from their own model + clipped Δ_i

Reputation starts at 0. α = 5 is the source's; with `decay` it grows, in spite of its name there, from α to
2α over the run (on for MNIST and Adult). Earlier versions of the source fade the other way (`fade = 0.2`), and
its class-imbalance split has κ = 1/6. Near uniform, a round multiplies relative deviations by 0.8 x coth x,
x = α/N: above 1 for five clients, so that reputations run away from one another even when all are alike.

With `sharpen = "share"` sinh is applied to ĉ_i and not, as in the code, to the reputation over and over (we recall
CFFL's text so, but have not checked it): c_i ← 0.8 c_i + 0.2 sinh(α ĉ_i) / Σ_j sinh(α ĉ_j), which does not run away.

Deviations of `paper`: clients send whole models, and the server clips and picks as they would; downloads are
the largest values, never random ones; ties at a cut are kept; no pre-training. Buffers are averaged, and a
client keeps its own. Weights are there equal over R, as they are used, and c is the standing. In both modes:
accuracies that are all 0 count as equal; the clients present share out the reputation they hold together,
those absent keep theirs and are not judged; a newcomer starts at the mean of R; R is never emptied; where
nobody present is in R the global model stays, and weights, which then are not used, are uniform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from celm.base.errors import CelmError
from celm.method.weights import Weights, normalised
from celm.metrics.accuracy import accuracy_of
from celm.models.deltas import moved
from celm.models.state import StateDict
from celm.rules.exchange import Delivery, Round
from celm.rules.rule import Facts, Needs, Rule, Weighing
from celm.rules.updates import at_least, change, cut, own_change, parameter_names, pooled


@dataclass(frozen=True)
class Reputable:
    """R with its reputations, those who left it, and everybody's own model in mode `paper`."""

    parameters: tuple[str, ...] = ()
    weights: Weights = field(default_factory=Weights)
    removed: tuple[str, ...] = ()
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """What a client puts in, in mode `paper`: its upload, the model that goes with it, and the one it has in hand."""

    upload: StateDict
    model: StateDict
    own: StateDict


@dataclass(frozen=True)
class Cffl(Rule[Reputable]):
    """Reputation by accuracy on validation data, sharpened; the least reputable are removed."""

    needs: ClassVar[Needs] = Needs(validation=True, sizes=True)
    state_type: ClassVar[type] = Reputable

    mode: Literal["aggregation", "paper"] = "aggregation"
    """Reputations as aggregation weights, or clipped uploads and rewards by reputation."""
    alpha: Annotated[float, Field(gt=0, le=100)] = 5.0
    """Sharpness of reputation."""
    sharpen: Literal["reputation", "share"] = "reputation"
    """What sinh is applied to: the reputation, again each round, or this round's share alone."""
    decay: bool = False
    """Let alpha grow to its double over the run."""
    fade: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """Share of the old reputation in the new."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1 / 3
    """κ: who has less than this fraction of the mean reputation is removed."""
    clip: Annotated[float, Field(gt=0)] = 0.01
    """g of mode paper: the greatest change of a value; the source's for MNIST (0.001 for CIFAR-10)."""
    theta: Annotated[float, Field(gt=0, le=1)] = 0.1
    """θ of mode paper: the fraction of its changes that a client uploads."""

    def init(self, federation: Facts) -> Reputable:
        return Reputable(parameter_names(federation))

    def weigh(self, state: Reputable, federation: Facts, round: Round) -> Weighing[Reputable]:
        names = round.clients
        shared = {name: self.share(state, round, name) for name in names} if self.mode == "paper" else {}
        accuracy = self.judge(round, shared)
        trusted = [name for name in names if name not in state.removed]
        known = state.weights.knowing(trusted)
        reputation, removed = known, state.removed
        if trusted:
            contribution = normalised({name: accuracy[name] for name in trusted})
            held = math.fsum(known.of[name] for name in trusted)
            old = known.of if state.weights.of else dict.fromkeys(names, 0.0)
            alpha = self.alpha * (1 + (round.number - 1) / federation.rounds if self.decay else 1)
            sharp = {name: math.sinh(alpha * contribution[name]) for name in trusted}
            new = contribution if self.sharpen == "reputation" else normalised(sharp)
            mixed = {name: self.fade * old[name] + (1 - self.fade) * held * new[name] for name in trusted}
            if self.sharpen == "reputation":
                mixed = {name: math.sinh(alpha * value) for name, value in mixed.items()}
            share = {name: held * part for name, part in normalised(mixed).items()}
            reputation = Weights({**known.of, **share})
            least = self.threshold / len(reputation.of)
            fallen = tuple(name for name in trusted if share[name] < least)
            staying = {name: value for name, value in reputation.of.items() if name not in fallen}
            if fallen and staying:
                reputation, removed = Weights(normalised(staying)), removed + fallen
        left = [name for name in names if name not in removed]
        among = reputation.among(left) if self.mode == "aggregation" else dict.fromkeys(left, 1.0)
        models = {**state.models, **self.rewarded(round, shared, reputation, left)}
        return Weighing(
            Reputable(state.parameters, reputation, removed, models),
            weights=normalised({name: among.get(name, 0.0) for name in names}),
            standing=normalised({**reputation.of, **dict.fromkeys(removed, 0.0)}),
            scores=normalised(accuracy),
            diagnostics={"accuracy": accuracy, "removed": list(removed)},
        )

    def merge(self, state: Reputable, round: Round, weighing: Weighing[Reputable]) -> StateDict:
        left = [name for name in round.clients if name not in weighing.state.removed]
        if not left:
            return round.start
        weights = weighing.weights
        if self.mode == "aggregation":
            return round.average(
                [round.updates[name].model for name in left], [weights[name] for name in left]
            )
        uploads = {name: self.share(state, round, name).upload for name in left}
        total = pooled(round, uploads, weights)
        start = {name: round.start[name] for name in state.parameters}
        return {**total, **moved(start, total, scale=len(left))}

    def deliver(self, state: Reputable, model: StateDict, client: str) -> Delivery:
        return Delivery(state.models.get(client, model))

    def judge(self, round: Round, shared: Mapping[str, Shared]) -> dict[str, float]:
        """Validation accuracy of every client present."""
        if round.validate is None:
            raise CelmError("rule 'cffl' needs validation data")
        if not shared:
            models = [update.model for update in round.updates.values()]
        elif self.theta == 1:
            models = [part.model for part in shared.values()]
        else:
            models = [moved(round.start, part.upload) for part in shared.values()]
        counts = round.validate(models)
        return {name: accuracy_of(count).accuracy for name, count in zip(round.clients, counts, strict=True)}

    def share(self, state: Reputable, round: Round, client: str) -> Shared:
        clipped = self.clipped(change(round, client, state.parameters))
        upload = largest_of_all(clipped, int(self.theta * values_in(clipped)))
        start = {name: round.delivered[client].model[name] for name in state.parameters}
        model = {**round.updates[client].model, **moved(start, clipped)}
        own = model
        if client in round.own:
            kept = self.clipped(own_change(round, client, state.parameters))
            own = {**round.held(client), **moved(start, kept)}
        return Shared(upload, model, own)

    def clipped(self, step: StateDict) -> StateDict:
        return {name: tensor.clamp(-self.clip, self.clip) for name, tensor in step.items()}

    def rewarded(
        self, round: Round, shared: Mapping[str, Shared], reputation: Weights, left: list[str]
    ) -> dict[str, StateDict]:
        """What every client present goes on from; nothing where all go on from the global model."""
        models = {name: part.own for name, part in shared.items()}
        if not shared or not left:
            return models
        uploads = {name: shared[name].upload for name in left}
        total = pooled(round, uploads, dict.fromkeys(left, 1.0))
        names = uploads[left[0]]
        common = {name: total[name] * len(left) for name in names}
        highest = max(reputation.of[name] for name in left)
        most = max(round.updates[name].size for name in left)
        for name in left:
            standing = reputation.of[name] / highest if highest > 0 else 1.0
            size = max(round.updates[name].size, 0) / most if most > 0 else 1.0
            allotted = largest_of_all(common, int(standing * size * values_in(common)))
            models[name] = moved(moved(models[name], allotted), uploads[name], scale=-1)
        return models


def values_in(step: StateDict) -> int:
    return sum(tensor.numel() for tensor in step.values())


def largest_of_all(step: StateDict, count: int) -> StateDict:
    """The `count` largest values by magnitude over all tensors, ties included; zeros elsewhere."""
    magnitude = cut(list(step.values()), count)
    return {name: at_least(tensor, magnitude) for name, tensor in step.items()}
