"""The audit of one round: load, check, probe a few models at a time, analyse.

Memory at one time: the global model, the file that is read and the models of one batch, for any number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from celm.auditing.analysis import Findings, analyse, find_duplicates
from celm.auditing.checkpoint_loader import CheckpointLoader, LoadedModel, ModelChangedError
from celm.auditing.head_claims import HeadReader
from celm.auditing.probe_cache import CachedProbe, CachedProber
from celm.auditing.settings import AuditSettings
from celm.auditing.sources import GLOBAL_NAME, RoundSources, Source
from celm.base.errors import CelmError
from celm.core.idle_detection import is_idle, relative_movement
from celm.core.model_stack import ModelStack
from celm.models.lazy_states import LazyStates
from celm.models.state_dict import StateDict
from celm.rules.celm_parts.idle import IdleState
from celm.rules.celm_parts.round_probe import HeadClaims

AuditCallback = Callable[[int, int], None]
"""Called with the number of models that are done and the number of all models."""
_NONFINITE_REASON = "logits are not finite under the probe"


@dataclass
class AuditProgress:
    """Counts models that are probed or excluded."""

    total: int
    callback: AuditCallback | None = None
    done: int = 0

    def advance(self) -> None:
        """Count one model and call the callback."""
        self.done += 1
        if self.callback is not None:
            self.callback(self.done, self.total)


@dataclass(frozen=True)
class RoundState:
    """State that one round passes to the next."""

    probes: Mapping[str, CachedProbe] = field(default_factory=dict)
    """The last probe of each model by name: a probe starts where the last one of the same model ended."""
    global_model: LoadedModel | None = None
    idle: IdleState = field(default_factory=IdleState)
    """Earlier global models, as the rule `celm` keeps them."""
    claims: Mapping[str, HeadClaims] = field(default_factory=dict)
    """With head evidence: the claims of each client so far."""


@dataclass(frozen=True)
class RoundFindings:
    """The findings of one round; None if no client could be audited. Excluded clients have a reason."""

    findings: Findings | None
    excluded: Mapping[str, str]
    state: RoundState


@dataclass(frozen=True)
class _ProbedClients:
    """The probes of a round's clients, excluded clients, and the source and digest of every client that was loaded."""

    probes: Mapping[str, CachedProbe]
    excluded: Mapping[str, str]
    loaded: Mapping[str, tuple[Source, str]]
    heads: Mapping[str, StateDict] = field(default_factory=dict)
    """With head evidence: the last layer of every client that was loaded."""

    @property
    def usable(self) -> dict[str, CachedProbe]:
        """The probes of the clients that are not excluded."""
        return {name: probe for name, probe in self.probes.items() if name not in self.excluded}


@dataclass(frozen=True)
class RoundAuditor:
    """Audits rounds one by one."""

    settings: AuditSettings
    loader: CheckpointLoader
    prober: CachedProber
    progress: AuditProgress
    strict: bool = False
    """Whether the first client that cannot be audited ends the audit."""
    head_reader: HeadReader | None = None
    """The reader of claims, for head evidence."""

    def audit(self, round: RoundSources, state: RoundState) -> RoundFindings:
        """Probe the global model and the clients of a round, and analyse the probes."""
        global_model, state = self._load_global(round, state)
        global_probe, state = self._probe_global(global_model, state)
        clients = self._probe_clients(round, state)
        state = replace(state, probes={**state.probes, **clients.probes})
        movement = None
        if self.settings.detects_idle:
            clients, movement = self._measure_movement(round.name, global_model, global_probe, clients, state)
        probes = clients.usable
        if not probes:
            return RoundFindings(None, clients.excluded, state)
        if len(probes) == 1:
            self.loader.manifest.add_remark(next(iter(probes)), "only client, so its score is always 1")
        claims, state = self._read_claims(global_model, clients, movement, state)
        digests = {name: digest for name, (_, digest) in clients.loaded.items()}
        findings = analyse(
            {name: probe.logits for name, probe in probes.items()},
            global_probe.logits,
            find_duplicates(global_model.digest, digests),
            self.settings,
            [probe.calibration for probe in probes.values() if probe.calibration is not None],
            movement,
            claims,
        )
        return RoundFindings(findings, clients.excluded, state)

    def _load_global(self, round: RoundSources, state: RoundState) -> tuple[LoadedModel, RoundState]:
        """Load the model that the round's clients started from, unless the last round had the same."""
        previous, idle = state.global_model, state.idle
        if previous is not None and previous.source is round.global_model:
            return previous, state
        if previous is not None and self.settings.detects_idle:
            idle = idle.record({name: tensor.clone() for name, tensor in previous.state.items()})
        global_model = self.loader.load_global(round.global_model, round.name)
        return global_model, replace(state, global_model=global_model, idle=idle)

    def _probe_global(self, model: LoadedModel, state: RoundState) -> tuple[CachedProbe, RoundState]:
        probe = self.prober.probe([model], state.probes, keep_inputs=self.settings.detects_idle)[0]
        self.progress.advance()
        if _nonfinite_names({GLOBAL_NAME: probe}):
            raise CelmError(f"global model: {_NONFINITE_REASON}")
        probes = {**state.probes, GLOBAL_NAME: self.prober.for_next_round(probe)}
        return probe, replace(state, probes=probes)

    def _probe_clients(self, round: RoundSources, state: RoundState) -> _ProbedClients:
        """Load and probe the clients of a round, a batch at a time."""
        probes: dict[str, CachedProbe] = {}
        excluded: dict[str, str] = {}
        loaded: dict[str, tuple[Source, str]] = {}
        heads: dict[str, StateDict] = {}
        batch: list[LoadedModel] = []
        batch_size = self.prober.models_per_call
        for count, source in enumerate(round.clients, start=1):
            try:
                model = self.loader.load_client(source, round.name)
                batch.append(model)
                loaded[model.name] = source, model.digest
                if self.head_reader is not None:
                    heads[model.name] = self.head_reader.select(model.state)
            except CelmError as error:
                excluded.setdefault(source.name, self._exclude(source.name, round.name, str(error)))
                self.progress.advance()
            if batch and (len(batch) == batch_size or count == len(round.clients)):
                batch_probes = self._probe_batch(batch, state.probes)
                for name in _nonfinite_names(batch_probes):
                    self.loader.manifest.mark_excluded(name, round.name, _NONFINITE_REASON)
                    excluded.setdefault(name, self._exclude(name, round.name, _NONFINITE_REASON))
                probes |= batch_probes
                batch = []
        return _ProbedClients(probes, excluded, loaded, heads)

    def _probe_batch(
        self, batch: Sequence[LoadedModel], previous: Mapping[str, CachedProbe]
    ) -> dict[str, CachedProbe]:
        probes = {}
        for model, probe in zip(batch, self.prober.probe(batch, previous), strict=True):
            probes[model.name] = self.prober.for_next_round(probe)
            self.progress.advance()
        return probes

    def _read_claims(
        self, global_model: LoadedModel, clients: _ProbedClients, movement: Tensor | None, state: RoundState
    ) -> tuple[list[HeadClaims] | None, RoundState]:
        """Return the claims of the usable clients in the rounds so far; None without head evidence.

        An idle round counts as a round without claims.
        """
        if self.head_reader is None:
            return None, state
        heads = {name: clients.heads[name] for name in clients.usable}
        delivered = self.head_reader.select(global_model.state)
        claims = self.head_reader.claims(delivered, heads)
        agreement: Sequence[Tensor | None] = [None] * len(heads)
        if self.settings.agreement is not None:
            agreement = list(self.head_reader.agreement(delivered, heads, claims))
        if movement is not None:
            claims = torch.where(is_idle(movement)[:, None], 0.0, claims)
        totals = {
            name: state.claims[name].add(row) if name in state.claims else HeadClaims(row, 1, v)
            for name, row, v in zip(heads, claims, agreement, strict=True)
        }
        return list(totals.values()), replace(state, claims={**state.claims, **totals})

    def _exclude(self, client: str, round: str, reason: str) -> str:
        """Return the reason for which a client is excluded; if the audit is strict, raise it."""
        if self.strict:
            raise CelmError(f"{client}: {with_round(round, reason)}")
        return reason

    def _measure_movement(
        self,
        round: str,
        global_model: LoadedModel,
        global_probe: CachedProbe,
        clients: _ProbedClients,
        state: RoundState,
    ) -> tuple[_ProbedClients, Tensor | None]:
        """Return the clients and how far each usable one moved the global model; None if no client is usable.

        A client whose model is not the one that was probed is excluded, and the rest are measured again.
        """
        while usable := clients.usable:
            try:
                loaded = [clients.loaded[name] for name in usable]
                return clients, self._movement(global_model, global_probe.inputs, loaded, state)
            except ModelChangedError as error:
                name, reason = error.client, str(error)
                self.loader.manifest.mark_changed(name, round, reason)
                excluded = {**clients.excluded, name: self._exclude(name, round, reason)}
                clients = replace(clients, excluded=excluded)
        return clients, None

    def _movement(
        self,
        global_model: LoadedModel,
        inputs: Tensor | None,
        clients: Sequence[tuple[Source, str]],
        state: RoundState,
    ) -> Tensor:
        """Return how far each client moved the global model. Files are read again, a few at a time.

        `inputs` are the final inputs `[R, K, *shape]` of the global model's probes; those of the first start are used.
        """
        if inputs is None:
            raise RuntimeError("the inputs of the global model's probe are missing")
        module = self.prober.module
        readers = [partial(self.loader.reload_client, source, digest) for source, digest in clients]
        return relative_movement(
            ModelStack(module, [global_model.state] * len(clients)),
            ModelStack(module, LazyStates(readers)),
            inputs[0],
            self.settings.seed,
            [*state.idle.history, global_model.state],
            self.prober.models_per_process,
        )


def _nonfinite_names(probes: Mapping[str, CachedProbe]) -> list[str]:
    return [name for name, probe in probes.items() if not bool(probe.logits.isfinite().all())]


def with_round(round: str, reason: str) -> str:
    """Return the reason with the name of its round, if the round has one."""
    return f"{round}: {reason}" if round else reason
