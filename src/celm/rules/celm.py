"""CELM: contribution from logit maximization, Algorithm 1 of the paper.

    during the first T_w rounds:  u_i, u_g = probe(w_i), probe(w_g(t-1))        Eq. 4-7   celm.method.probe
                                  Q = max(0, u - b), class shares, c̄            Eq. 8-12  celm.method.evidence
                                  c(t) = β c(t-1) + (1 - β) c̄                   Eq. 13    celm.method.weights
    afterwards:                   c(t) = c(T_w)                                 Eq. 14
    always:                       w_g(t) = Σ_i c_i(t) w_i

Probes start from Gaussian noise, then from where the last round's probe of the same model ended. While it
warms up, clients keep their own heads. c(0) is equal for all. With calibrated evidence, a client that does not work
has none (celm.method.movement); in the first round that scores a client β = 0 for it, so that it does not keep a part
of c(0); and weights are multiplied by the part of the rounds it was asked in that it answered with something usable,
so that silence is no way to keep them. With `reprobe`, clients are looked at again after the freeze, and one that has
stopped working has no weight until it works again; the weights of the others keep their proportions. With `settle`,
T_w is the most: the warm-up ends once a round moves no weight by more than that.

Reference: Ukaye, Tastan, Abdu-Aguye & Nandakumar, Class-wise Contribution Estimation via Logit Maximization for
Federated Learning, ECCV. Equations are numbered as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.names import in_order
from celm.method.calibration import calibrated_evidence
from celm.method.cheaper import refined, sampled_classes, sampling_errors
from celm.method.evidence import bias, evidence, scores, unreadable
from celm.method.movement import idle
from celm.method.probe import Probe
from celm.method.weights import Weights, normalised, warmup_rounds
from celm.models.state import StateDict
from celm.rules.exchange import Round
from celm.rules.probing import GLOBAL, begin, ended, probe_global, probe_of_round, put
from celm.rules.rule import Facts, Rule, Weighing
from celm.rules.work import moves, named, stopped, told


@dataclass(frozen=True)
class Evidence:
    """What CELM remembers: weights, and the inputs `[K, *shape]` at which the last probe of each model ended."""

    weights: Weights = field(default_factory=Weights)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    global_inputs: Tensor | None = None
    idle: tuple[str, ...] = ()
    """Who had stopped working when last looked at."""
    past: tuple[StateDict, ...] = ()
    """The first global model and the last ones, where clients are asked whether they work."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """With calibrated evidence: in how many rounds of the warm-up each client was asked."""
    answered: Mapping[str, int] = field(default_factory=dict)
    """In how many of them it sent something usable."""
    ended: int | None = None
    """The round in which the weights had settled, before the warm-up was over."""
    evidence: Mapping[str, Tensor] = field(default_factory=dict)
    """Where not all classes are probed in a round: the evidence of each when last seen, 0 where it never was."""

    def last(self) -> dict[str, Tensor | None]:
        """Where the last probe of each model ended."""
        return {GLOBAL: self.global_inputs, **self.inputs}

    def attended(self) -> Weights:
        """The weights, less what silence costs."""
        return self.weights.attended(self.asked, self.answered)


@dataclass(frozen=True)
class Celm(Rule[Evidence]):
    """Class-wise contribution by logit maximization (the paper's method)."""

    state_type: ClassVar[type] = Evidence

    warmup: Annotated[int, Field(ge=1)] | None = None
    """T_w, the rounds that are probed; by default `fraction` of all, at least one."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.05
    """T_w / T, where `warmup` does not say."""
    settle: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Ends the warm-up before T_w, after the first round from `least` on in which no weight moves by more than this."""
    least: Annotated[int, Field(ge=1)] = 3
    """The rounds that are probed at least, with `settle`."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Smoothing factor of the weights."""
    debias: bool = True
    """Whether the global model's level is taken off; without it evidence is max(0, u)."""
    share_by: Literal["class", "all"] = "class"
    """Shares of each class, averaged, or one share of all evidence."""
    evidence: Literal["paper", "calibrated"] = "paper"
    """The paper's, or one that scaling a model cannot raise (celm.method.calibration), where `debias` has no part."""
    remember: Annotated[int, Field(ge=2)] = 5
    """How many global models are kept, the first and the last ones, with calibrated evidence or `reprobe`: to move as
    they did is no work."""
    warm_start: bool = True
    """Whether a probe begins where the last one of the same model ended, or from noise again."""

    reprobe: Annotated[str, Field(pattern=r"^(never|every:[1-9]\d{0,5}|on-drift)$")] = "never"
    """When to look again at who still works: `every:10` rounds after the freeze, with a fresh probe of the global
    model; `on-drift` in every round with the last probe, and with a fresh one where somebody seems to have stopped."""

    def local_heads(self, rounds: int) -> int:
        return self.warmup or warmup_rounds(rounds, self.fraction)

    def settled(self, state: Evidence) -> bool:
        return state.ended is not None

    def settles(self, number: int, before: Weights, after: Weights) -> bool:
        """Whether a round moved no weight by more than `settle`."""
        if self.settle is None or number < self.least:
            return False
        known = before.knowing(list(after.of))
        return max(abs(weight - known.of[name]) for name, weight in after.of.items()) <= self.settle

    def init(self, federation: Facts) -> Evidence:
        if self.evidence == "calibrated" and federation.probe.classes is not None:
            raise CelmError(
                "probe.classes: calibrated evidence compares all classes of a client", "leave one of the two"
            )
        return Evidence(Weights().knowing(federation.clients))

    def weigh(self, state: Evidence, federation: Facts, round: Round) -> Weighing[Evidence]:
        over = state.ended or round.number > self.local_heads(federation.rounds)
        found = (self.after_warmup if over else self.warming_up)(state, federation, round)
        looks = self.reprobe != "never" or (self.evidence == "calibrated" and not over)
        past = (*found.state.past, round.start) if looks else ()
        if len(past) > self.remember:
            past = (past[0], *past[2:])
        return replace(found, state=replace(found.state, past=past))

    def warming_up(self, state: Evidence, federation: Facts, round: Round) -> Weighing[Evidence]:
        names = in_order(round.clients)
        columns = sampled_classes(federation.classes, federation.probe.classes, federation.seed, round.number)
        found, left = self.probed(federation, round, state.last() if self.warm_start else {}, columns)
        still, seen = self.who_works(state, federation, round, found)
        Q = self.evidence_of(found, still)
        score = dict(zip(names, self.scores_of(Q).tolist(), strict=True))
        level, lost = bias(found.logits[0]), unreadable(found.logits[1:])
        diagnostics: dict[str, Any] = {
            "bias": level.item() if level.isfinite() else None,
            "unreadable": named(names, lost),
            **seen,
        }
        if self.evidence == "calibrated":
            diagnostics["faint"] = named(names, (Q.sum(dim=1) == 0) & ~still & ~lost)
        if left is not None:
            diagnostics["score_error"] = left
        if len(columns) < federation.classes:
            errors = sampling_errors(Q, federation.classes).tolist()
            diagnostics |= {"probed": columns, "standard_errors": dict(zip(names, errors, strict=True))}
        state, known = self.remembered(state, federation, names, columns, found, Q)
        state = self.smoothed(state, round, score)
        weights = state.attended()
        return Weighing(
            state,
            weights=weights.among(names),
            standing=weights.of,
            scores=score,
            evidence={name: row.tolist() for name, row in known.items()},
            inputs={name: state.inputs[name] for name in names} if federation.probe.keep else None,
            diagnostics=diagnostics,
        )

    def who_works(
        self, state: Evidence, federation: Facts, round: Round, found: Probe
    ) -> tuple[Tensor, dict[str, Any]]:
        """Which clients stand still `[N]`, for the record too; with the paper's evidence nobody is looked at."""
        names = in_order(round.clients)
        if self.evidence != "calibrated":
            return torch.zeros(len(names), dtype=torch.bool), {}
        keep = federation.probe.keep
        inputs = found.inputs[0] if keep else probe_global(federation, round, state.global_inputs)
        moved = moves(federation, round, state.past, inputs)
        still = idle(moved)
        return still, {"idle": named(names, still), "movement": told(names, moved)}

    def smoothed(self, state: Evidence, round: Round, score: Mapping[str, float]) -> Evidence:
        """Eq. 13, and whether it has settled; a round without any evidence says nothing of anybody."""
        calibrated = self.evidence == "calibrated"
        # Equal weights to begin with are the paper's; who never worked would keep a part of them.
        anew = set(score).difference(state.answered) if calibrated else set()
        weights = state.weights.smoothed(score, self.beta, anew)
        if not any(score.values()):
            return replace(state, weights=weights)
        if calibrated:
            asked, answered = counted(state.asked, round.asked), counted(state.answered, score)
            state = replace(state, asked=asked, answered=answered)
        settled = self.settles(round.number, state.weights, weights)
        return replace(state, weights=weights, ended=round.number if settled else None)

    def remembered(
        self,
        state: Evidence,
        federation: Facts,
        names: list[str],
        columns: list[int],
        found: Probe,
        Q: Tensor,
    ) -> tuple[Evidence, dict[str, Tensor]]:
        """With where probes ended; also the evidence of all classes, of those not probed as when last seen."""
        known = dict(zip(names, Q, strict=True))
        if len(columns) < federation.classes:
            nothing = torch.zeros(federation.classes, dtype=torch.float64)
            known = {
                name: put(state.evidence.get(name, nothing), columns, row) for name, row in known.items()
            }
            state = replace(state, evidence={**state.evidence, **known})
        if not federation.probe.keep:
            return replace(state, global_inputs=None), known
        inputs = ended(federation, names, found, state.last(), columns)
        global_inputs = inputs.pop(GLOBAL)
        return replace(state, inputs={**state.inputs, **inputs}, global_inputs=global_inputs), known

    def probed(
        self, federation: Facts, round: Round, last: Mapping[str, Tensor | None], columns: list[int]
    ) -> tuple[Probe, float | None]:
        """The global model and the clients', in order; and, with a tolerance, how wrong the scores may be.

        That is of the scores as they are with all clients at work.
        """
        how = federation.probe
        walk = probe_of_round(federation, round, last, columns, self.evidence == "calibrated")
        if how.tolerance is None:
            return walk(how.steps, how.lr), None
        return refined(
            walk, lambda found: self.scores_of(self.evidence_of(found)), how.steps, how.lr, how.tolerance
        )

    def scores_of(self, Q: Tensor) -> Tensor:
        """c̄ of the clients."""
        # All classes as one: the share of a client is then that of its evidence in everybody's.
        return scores(Q if self.share_by == "class" else Q.sum(dim=1, keepdim=True))

    def after_warmup(self, state: Evidence, federation: Facts, round: Round) -> Weighing[Evidence]:
        """After the warm-up: weights stay, but for clients that do not work."""
        needed = None if self.reprobe == "never" else state.global_inputs
        known = state.attended().knowing(round.clients)
        state = replace(
            state, weights=known, inputs={}, global_inputs=needed, evidence={}, asked={}, answered={}
        )
        after = round.number - (state.ended or self.local_heads(federation.rounds))
        moved: dict[str, float | None] = {}
        every = int(self.reprobe.removeprefix("every:")) if self.reprobe.startswith("every:") else None
        if every is not None and after % every == 0:
            state, moved = self.look(state, federation, round, fresh=True)
        elif self.reprobe == "on-drift":
            state, moved = self.look(state, federation, round, fresh=False)
            if state.idle:
                state, moved = self.look(state, federation, round, fresh=True)
        active = [name for name in round.clients if name not in state.idle] or round.clients
        weights = {**dict.fromkeys(round.clients, 0.0), **state.weights.among(active)}
        standing = normalised(
            {name: 0.0 if name in state.idle else weight for name, weight in state.weights.of.items()}
        )
        diagnostics = {"idle": list(state.idle), "movement": moved} if self.reprobe != "never" else {}
        return Weighing(state, weights=weights, standing=standing, diagnostics=diagnostics)

    def look(
        self, state: Evidence, federation: Facts, round: Round, fresh: bool
    ) -> tuple[Evidence, dict[str, float | None]]:
        """Who of the present has stopped working, and how far each moved."""
        last, names = state.global_inputs, in_order(round.clients)
        inputs = (
            probe_global(federation, round, last)
            if fresh or last is None
            else begin(federation, GLOBAL, last)
        )
        moved = moves(federation, round, state.past, inputs)
        state = replace(state, global_inputs=inputs, idle=stopped(names, moved, state.idle))
        return state, told(names, moved)

    def evidence_of(self, found: Probe, still: Tensor | None = None) -> Tensor:
        """Q of the clients, from a probe of the global model and of theirs; who stands `still` `[N]` has none."""
        if found.calibration is not None:
            return calibrated_evidence(found.logits[1:], found.calibration[1:], still)
        reference = found.logits[0] if self.debias else torch.zeros_like(found.logits[0])
        return evidence(found.logits[1:], reference)


def counted(before: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """One more of each."""
    return {**before, **{name: before.get(name, 0) + 1 for name in names}}
