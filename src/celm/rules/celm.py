"""CELM: class-wise contribution estimation via logit maximization, Algorithm 1 of the paper.

    warm-up, t <= T_w:   u_i, u_g = probe(w_i), probe(w_g(t-1))        Eq. 4-7    celm.core.probe
                         Q = max(0, u - b), class shares, scores c̄     Eq. 8-12   celm.core.evidence
                         c(t) = β c(t-1) + (1 - β) c̄                   Eq. 13     celm.core.weights
    afterwards:          c(t) = c(T_w)                                 Eq. 14
    always:              w_g(t) = Σ_i c_i(t) w_i

c(0) is equal for all clients. A probe starts from Gaussian noise, in later rounds from the final inputs of the last
probe of the same model. During the warm-up, clients keep their own classifier heads.

Extensions, each a part in celm.rules.celm_parts; the defaults are the paper's:

- With calibrated or head evidence an idle client has no evidence (celm.core.idle_detection). In the first round that
  scores a client, β = 0 for it. Weights are scaled by the client's response rate, so a client cannot keep weight by
  staying silent.
- With head evidence the change of each client's last layer replaces the probe of its model (celm.core.head_evidence).
- With `idle_check`, clients are re-checked after the warm-up. An idle client has weight 0 until it trains again.
- With `warmup_tolerance`, the warm-up ends before T_w once no weight changes by more than that in a round.
- With `probe.tolerance` a probe takes fewer steps, with `probe.classes` it covers a sample of the classes.

Reference: Ukaye, Tastan, Abdu-Aguye & Nandakumar, Class-wise Contribution Estimation via Logit Maximization for
Federated Learning, ECCV. Equations are numbered as there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from celm.base.errors import CelmError
from celm.core.evidence import bias, nonfinite_clients, scores
from celm.core.evidence_models import CalibratedEvidence, ClaimedEvidence, EvidenceModel, PaperEvidence
from celm.core.probe_schedules import make_schedule
from celm.core.weights import ClientWeights, normalise_weights, warmup_rounds
from celm.rules.celm_parts.attendance import Attendance
from celm.rules.celm_parts.class_sampler import make_class_sampler
from celm.rules.celm_parts.head_probe import HeadProbe
from celm.rules.celm_parts.idle import (
    GLOBAL_HISTORY,
    IdleMonitor,
    IdleReport,
    IdleState,
    MovementMonitor,
    NoMonitor,
    select_names,
)
from celm.rules.celm_parts.idle_check import IdleCheck, exclude_idle, parse_idle_check, recheck
from celm.rules.celm_parts.round_probe import ProbeState, RoundProbe, RoundProbeResult
from celm.rules.celm_parts.warmup import Warmup, WarmupState, make_warmup
from celm.rules.messages import RoundData
from celm.rules.rule import Rule, ServerContext, WeightingResult

_MIN_CONVERGED = 3
"""The smallest number of warm-up rounds with `warmup_tolerance`, unless `min_warmup` is set."""


@dataclass(frozen=True)
class CelmState:
    """The state of CELM between rounds, one field per part."""

    weights: ClientWeights = field(default_factory=ClientWeights)
    probe: ProbeState = field(default_factory=ProbeState)
    warmup: WarmupState = field(default_factory=WarmupState)
    idle: IdleState = field(default_factory=IdleState)
    attendance: Attendance | None = None
    """Requests and replies of each client; None with the paper's evidence or after the warm-up."""
    contributions: ClientWeights | None = None
    """After a warm-up, unless evidence is the paper's: the weights before scaling by response rates; 0 for a client
    that did not reply in any round of the warm-up."""
    reported: CelmState | None = None
    """The state of the estimate that `scores_from` names."""

    @property
    def effective_weights(self) -> ClientWeights:
        """The weights, scaled by response rates if attendance is recorded."""
        return self.weights if self.attendance is None else self.attendance.apply(self.weights)


@dataclass(frozen=True)
class _CelmParts:
    """The settings of the rule as objects."""

    warmup: Warmup
    probe: RoundProbe | HeadProbe
    evidence: EvidenceModel
    monitor: IdleMonitor
    idle_check: IdleCheck


@dataclass(frozen=True)
class Celm(Rule[CelmState]):
    """Class-wise contribution by logit maximization; the paper's rule."""

    state_type: ClassVar[type] = CelmState

    warmup: Annotated[int, Field(ge=1)] | None = None
    """T_w, the number of warm-up rounds. Only these are probed. By default `warmup_fraction` of all, at least one."""
    warmup_fraction: Annotated[float, Field(gt=0, le=1)] = 0.05
    """T_w / T, if `warmup` is not set."""
    warmup_tolerance: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Largest change of a weight at which the warm-up ends before T_w, from round `min_warmup` on."""
    min_warmup: Annotated[int, Field(ge=1)] | None = None
    """The smallest number of warm-up rounds that `warmup_fraction` and `warmup_tolerance` may give.
    By default one, and three with `warmup_tolerance`. An explicit `warmup` takes precedence."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Smoothing factor of the weights."""
    debias: bool = True
    """Whether evidence is relative to the global model's level, max(0, u - b); otherwise it is max(0, u)."""
    share_by: Literal["class", "all"] = "class"
    """`class`: mean of a client's shares of each class; `all`: its share of all evidence."""
    evidence: Literal["paper", "calibrated", "head"] = "paper"
    """`paper`: Eq. 8-9. `calibrated`: scaling a model cannot raise it (celm.core.calibration). `head`: from the change
    of the last layer, without a probe of clients (celm.core.head_evidence). The last two ignore `debias`."""
    scores_from: Literal["paper", "calibrated", "head"] | None = None
    """The evidence of the scores and contributions that are reported, beside that of the weights. By default the same.
    Then two estimates are made of each warm-up round."""
    agreement: Annotated[float, Field(gt=0)] | None = None
    """γ: also report, in the diagnostics, the scores that head evidence gives if claims are lowered by their
    disagreement with those of other clients to this power, such as 2. Weights and scores stay without it."""
    global_history: Annotated[int, Field(ge=2)] = GLOBAL_HISTORY
    """With `calibrated`, `head` or `idle_check`: how many global models are kept, the first and the last ones.
    Repeating an earlier global update does not count as training."""
    warm_start: bool = True
    """Whether a probe starts from the final inputs of the last probe of the same model; otherwise from noise."""

    idle_check: Annotated[str, Field(pattern=r"^(never|every:[1-9]\d{0,5}|on-drift)$")] = "never"
    """When to re-check after the warm-up which clients still train. `every:10`: every 10 rounds, with a new probe of
    the global model. `on-drift`: every round with the last probe, then with a new one if a client is idle."""

    def local_head_rounds(self, rounds: int) -> int:
        return self.warmup or min(rounds, warmup_rounds(rounds, self.warmup_fraction, self.min_warmup or 1))

    def warmup_over(self, state: CelmState) -> bool:
        return state.warmup.ended_at is not None

    def init(self, context: ServerContext) -> CelmState:
        if self._extends_paper and context.probe.classes is not None:
            raise CelmError(
                f"probe.classes: {self.evidence} evidence compares all classes of a client",
                "remove probe.classes, or use the paper's evidence",
            )
        if self.agreement is not None and "head" not in (self.evidence, self.scores_from):
            raise CelmError(
                "rule.agreement: only head evidence measures agreement",
                "set rule.evidence=head or rule.scores_from=head",
            )
        weights = ClientWeights().with_clients(context.clients)  # c(0)
        reported = None if self._reporting_rule is None else self._reporting_rule.init(context)
        return CelmState(weights, attendance=Attendance() if self._extends_paper else None, reported=reported)

    def compute_weights(
        self, state: CelmState, context: ServerContext, round: RoundData
    ) -> WeightingResult[CelmState]:
        result = self._estimate(state, context, round)
        if self._reporting_rule is None or state.reported is None:
            return result
        reported = self._reporting_rule.compute_weights(state.reported, context, round)
        return _with_report(result, reported)

    def _estimate(
        self, state: CelmState, context: ServerContext, round: RoundData
    ) -> WeightingResult[CelmState]:
        """Algorithm 1."""
        parts = self._parts(context)
        rounds_after_warmup = round.round_number - parts.warmup.last_round(state.warmup)
        if rounds_after_warmup > 0:
            return self._frozen_round(parts, state, context, round, rounds_after_warmup)  # Eq. 14

        probe = parts.probe.run(state.probe, round)  # Eq. 4-7
        idle = parts.monitor.detect(state.idle, context, round, probe.global_inputs)  # paper: no client
        Q = parts.evidence(probe.client_logits, probe.global_logits, probe.measurements, idle.mask)  # Eq. 8-9
        client_scores = dict(zip(probe.clients, self._scores(Q).tolist(), strict=True))  # Eq. 10-12
        newcomers = state.attendance.newcomers(client_scores) if state.attendance else ()
        weights = state.weights.smooth(client_scores, self.beta, reset=newcomers)  # Eq. 13

        probe_state, evidence = parts.probe.update(state.probe, probe, Q)
        warmup, attendance = state.warmup, state.attendance
        if any(client_scores.values()):  # a round without evidence does not count
            warmup = parts.warmup.update(warmup, state.weights, weights, round.round_number)
            attendance = attendance and attendance.record(round.selected, replied=client_scores)
        idle_state = state.idle.record(round.global_model, self._history_limit(in_warmup=True))
        state = CelmState(weights, probe_state, warmup, idle_state, attendance)
        effective_weights, inputs = state.effective_weights, probe_state.client_inputs
        return WeightingResult(
            state,
            aggregation_weights=effective_weights.restricted_to(probe.clients),
            client_weights=effective_weights.by_client,
            contributions=weights.by_client,
            scores=client_scores,
            evidence={name: row.tolist() for name, row in evidence.items()},
            probe_inputs={name: inputs[name] for name in probe.clients} if inputs else None,
            diagnostics=self._diagnostics(parts, probe, idle, Q),
        )

    def _frozen_round(
        self,
        parts: _CelmParts,
        state: CelmState,
        context: ServerContext,
        round: RoundData,
        rounds_after_warmup: int,
    ) -> WeightingResult[CelmState]:
        """Keep the weights, except those of clients that an idle check finds idle."""
        weights = state.effective_weights.with_clients(round.clients)
        is_checked = self.idle_check != "never"
        global_inputs = state.probe.global_inputs if is_checked else None
        effort = parts.idle_check.due(rounds_after_warmup)
        check = recheck(effort, state.idle, global_inputs, context, round)
        aggregation_weights, client_weights = exclude_idle(weights, check.state.idle, round.clients)
        contributions = (
            state.attendance.contributions(state.weights) if state.attendance else state.contributions
        )
        if contributions is not None:
            contributions = contributions.with_clients(round.clients)
        idle_state = check.state.record(round.global_model, self._history_limit(in_warmup=False))
        return WeightingResult(
            CelmState(
                weights,
                ProbeState(check.global_inputs),
                state.warmup,
                idle_state,
                contributions=contributions,
            ),
            aggregation_weights,
            client_weights,
            exclude_idle(contributions, check.state.idle, round.clients)[1] if contributions else None,
            diagnostics=check.diagnostics if is_checked else {},
        )

    @property
    def _extends_paper(self) -> bool:
        """Whether evidence is not the paper's, so that idle clients have none and attendance counts."""
        return self.evidence != "paper"

    @property
    def _reporting_rule(self) -> Celm | None:
        """The rule whose estimate is reported, if it is not this one. Idle checks after the warm-up are made once."""
        if self.scores_from in (None, self.evidence):
            return None
        return replace(self, evidence=self.scores_from, scores_from=None, idle_check="never")

    def _scores(self, Q: Tensor) -> Tensor:
        """Return c̄ `[N]`; with `share_by` all, as if all classes were one."""
        return scores(Q if self.share_by == "class" else Q.sum(dim=1, keepdim=True))

    def _history_limit(self, in_warmup: bool) -> int:
        """Return how many global models to keep: none unless the movement of clients is measured."""
        is_measured = self.idle_check != "never" or (self._extends_paper and in_warmup)
        return self.global_history if is_measured else 0

    def _diagnostics(
        self, parts: _CelmParts, probe: RoundProbeResult, idle: IdleReport, Q: Tensor
    ) -> dict[str, Any]:
        level, nonfinite = bias(probe.global_logits), nonfinite_clients(probe.client_logits)
        diagnostics = {
            "bias": level.item() if level.isfinite() else None,
            "nonfinite": select_names(probe.clients, nonfinite),
            **idle.diagnostics,
        }
        if self._extends_paper:
            no_evidence = (Q.sum(dim=1) == 0) & ~idle.mask & ~nonfinite
            diagnostics["no_evidence"] = select_names(probe.clients, no_evidence)
        if probe.agreement is not None:
            agreed = self._scores(Q * probe.agreement ** (self.agreement or 0.0)).tolist()
            diagnostics["agreement_scores"] = dict(zip(probe.clients, agreed, strict=True))
        if probe.score_error is not None:
            diagnostics["score_error"] = probe.score_error
        return diagnostics | parts.probe.sampler.diagnostics(probe.clients, probe.classes, Q)

    def _parts(self, context: ServerContext) -> _CelmParts:
        """Build the parts from the settings."""
        probe = context.probe
        evidence = _evidence_model(self, context.seed)
        round_probe = RoundProbe(
            context,
            make_class_sampler(context.classes, probe.classes, context.seed),
            make_schedule(probe.steps, probe.lr, probe.tolerance),
            evidence.transform,
            score=lambda result: self._scores(
                evidence(result.client_logits, result.global_logits, result.measurements)
            ),
            warm_start=self.warm_start,
        )
        return _CelmParts(
            warmup=make_warmup(
                self.local_head_rounds(context.rounds),
                self.warmup_tolerance,
                self.min_warmup or _MIN_CONVERGED,
            ),
            probe=HeadProbe(context, self.warm_start, self.agreement is not None)
            if self.evidence == "head"
            else round_probe,
            evidence=evidence,
            monitor=MovementMonitor() if self._extends_paper else NoMonitor(),
            idle_check=parse_idle_check(self.idle_check),
        )


def _with_report(
    result: WeightingResult[CelmState], reported: WeightingResult[CelmState]
) -> WeightingResult[CelmState]:
    """Return a result with the scores, evidence and contributions of another estimate; idle clients have none."""
    idle = result.diagnostics.get("idle", ())
    contributions = reported.contributions or reported.client_weights
    return replace(
        result,
        state=replace(result.state, reported=reported.state),
        contributions=normalise_weights(
            {name: 0.0 if name in idle else c for name, c in contributions.items()}
        ),
        scores=reported.scores,
        evidence=reported.evidence,
        diagnostics={**reported.diagnostics, **result.diagnostics},
    )


def _evidence_model(rule: Celm, seed: int) -> EvidenceModel:
    if rule.evidence == "head":
        return ClaimedEvidence()
    return CalibratedEvidence(seed) if rule.evidence == "calibrated" else PaperEvidence(rule.debias)
