"""The probe of a round: the global model and the clients' models, each from its warm start.

    x(0) = the final inputs of the last probe of the same model, if they exist and are finite; else Gaussian noise

The noise depends on the seed and the client's name, not on the other models of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.core.model_stack import ModelStack
from celm.core.probe import LazyInputs, ProbeResult, ProbeTransform, model_noise
from celm.core.probe_schedules import ProbeSchedule
from celm.models.lazy_states import prepend
from celm.models.state_dict import StateDict
from celm.rules.celm_parts.class_sampler import ClassSampler
from celm.rules.messages import RoundData
from celm.rules.rule import ServerContext

GLOBAL_KEY = ""
"""The name from which the global model's noise is drawn. No client has it."""


@dataclass(frozen=True)
class HeadClaims:
    """The head claims of a client so far (celm.rules.celm_parts.head_probe)."""

    total: Tensor
    """Sum of f `[K]` over its rounds."""
    rounds: int
    agreement: Tensor | None = None
    """v `[K]` of the client's first round, if it is asked for."""

    @property
    def mean(self) -> Tensor:
        """Q `[K]`"""
        return self.total / self.rounds

    def add(self, claims: Tensor) -> HeadClaims:
        """Return the claims with those of one more round."""
        return replace(self, total=self.total + claims, rounds=self.rounds + 1)


@dataclass(frozen=True)
class ProbeState:
    """Results of probes that later rounds need, each over all classes."""

    global_inputs: Tensor | None = None
    """Final probe inputs `[K, *shape]` of the global model."""
    client_inputs: Mapping[str, Tensor] = field(default_factory=dict)
    """Final probe inputs `[K, *shape]` of each client's model."""
    evidence: Mapping[str, Tensor] = field(default_factory=dict)
    """If a round probes a sample of classes: the last evidence of each client `[K]`, 0 for classes not yet probed."""
    claims: Mapping[str, HeadClaims] = field(default_factory=dict)
    """With head evidence: the claims of each client so far."""


@dataclass(frozen=True)
class RoundProbeResult:
    """The probe of N clients and of the global model, for k classes."""

    clients: Sequence[str]
    classes: Sequence[int]
    client_logits: Tensor
    """`[N, k]`"""
    global_logits: Tensor
    """`[k]`"""
    client_inputs: Tensor | None
    """Final inputs `[N, k, *shape]`; None if the probe does not keep them."""
    global_inputs: Tensor | None
    """Final inputs `[k, *shape]`; None if the probe does not keep them."""
    measurements: Any = None
    """Measurements of the probe's transform on the clients' models."""
    agreement: Tensor | None = None
    """v `[N, K]` of each client's first round, for head evidence with `agreement`."""
    score_error: float | None = None
    """A bound on the error of the scores of all clients, if the schedule gives one."""


@dataclass(frozen=True)
class RoundProbe:
    """The probe of a round, with its classes, schedule and transform."""

    context: ServerContext
    sampler: ClassSampler
    schedule: ProbeSchedule
    transform: ProbeTransform | None
    score: Callable[[RoundProbeResult], Tensor]
    """Scores `[N]` of the clients, by which the schedule judges a result."""
    warm_start: bool = True

    def run(self, state: ProbeState, round: RoundData) -> RoundProbeResult:
        """Probe the global model and the clients' models, in client order."""
        context, clients = self.context, natural_sorted(round.clients)
        classes = self.sampler.classes(round.round_number)
        warm_starts = {GLOBAL_KEY: state.global_inputs, **state.client_inputs} if self.warm_start else {}
        inputs = LazyInputs(
            [
                partial(_class_inputs, context, name, warm_starts.get(name), classes)
                for name in (GLOBAL_KEY, *clients)
            ]
        )
        states = prepend(round.global_model, round.models(clients))

        def run_probe(steps: int, lr: float) -> RoundProbeResult:
            result = context.probe_fn(
                ModelStack(context.module, states),
                inputs,
                classes,
                steps=steps,
                lr=lr,
                **context.probe.kwargs(),
                seed=context.seed,
                transform=self.transform,
            )
            return _split_global(result, clients, classes, context.probe.keep_inputs)

        result, score_error = self.schedule.run(run_probe, self.score)
        return replace(result, score_error=score_error)

    def update(
        self, state: ProbeState, probe: RoundProbeResult, Q: Tensor
    ) -> tuple[ProbeState, dict[str, Tensor]]:
        """Return the state for the next round, and the evidence `[K]` of each client.

        Classes that were not probed keep their earlier inputs and evidence.
        """

        def fill(values: Tensor, previous: Callable[[], Tensor]) -> Tensor:
            return self.sampler.fill(values, probe.classes, previous)

        no_evidence = torch.zeros(self.context.classes, dtype=torch.float64)
        earlier = {**dict.fromkeys(probe.clients, no_evidence), **state.evidence}
        evidence = {
            name: fill(row, partial(earlier.__getitem__, name))
            for name, row in zip(probe.clients, Q, strict=True)
        }
        if len(probe.classes) < self.context.classes:
            state = replace(state, evidence={**state.evidence, **evidence})
        if probe.client_inputs is None or probe.global_inputs is None:
            return replace(state, global_inputs=None), evidence
        start = partial(initial_inputs, self.context)
        client_inputs = {
            name: fill(x, partial(start, name, state.client_inputs.get(name)))
            for name, x in zip(probe.clients, probe.client_inputs, strict=True)
        }
        global_inputs = fill(probe.global_inputs, partial(start, GLOBAL_KEY, state.global_inputs))
        inputs = {**state.client_inputs, **client_inputs}
        return replace(state, client_inputs=inputs, global_inputs=global_inputs), evidence


def probe_global(context: ServerContext, global_model: StateDict, warm_start: Tensor | None) -> Tensor:
    """Probe the global model alone; return its final inputs `[K, *shape]`."""
    settings = context.probe
    return context.probe_fn(
        ModelStack(context.module, [global_model]),
        initial_inputs(context, GLOBAL_KEY, warm_start)[None],
        context.classes,
        steps=settings.steps,
        lr=settings.lr,
        **settings.kwargs() | {"keep_inputs": True},
    ).inputs[0]


def initial_inputs(context: ServerContext, name: str, warm_start: Tensor | None) -> Tensor:
    """Return x(0) of a model for all classes, `[K, *shape]`."""
    if warm_start is not None and bool(warm_start.isfinite().all()):
        return warm_start
    return model_noise(context.seed, name, context.classes, context.input_shape)


def _class_inputs(context: ServerContext, name: str, warm_start: Tensor | None, classes: list[int]) -> Tensor:
    return initial_inputs(context, name, warm_start)[classes]


def _split_global(
    result: ProbeResult, clients: list[str], classes: list[int], keep_inputs: bool
) -> RoundProbeResult:
    """Separate the global model, which is probed first, from the clients."""
    return RoundProbeResult(
        clients,
        classes,
        client_logits=result.logits[1:],
        global_logits=result.logits[0],
        client_inputs=result.inputs[1:] if keep_inputs else None,
        global_inputs=result.inputs[0] if keep_inputs else None,
        measurements=None if result.measurements is None else result.measurements[1:],
    )
