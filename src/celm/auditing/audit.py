"""`celm.audit`: the contribution of each client, from models in memory or on disk."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from celm.auditing.analysis import Findings
from celm.auditing.audit_folder import AuditFolder, write_audit
from celm.auditing.auditor import AuditCallback, AuditProgress, RoundAuditor, RoundState, with_round
from celm.auditing.checkpoint_loader import CheckpointLoader
from celm.auditing.head_claims import HeadReader
from celm.auditing.ledger import Manifest, relative_path
from celm.auditing.model_loading import AuditedModel, build_audited_model, read_fixed_inputs
from celm.auditing.probe_cache import CachedProber
from celm.auditing.result import Audit, make_audited_round, make_document
from celm.auditing.settings import AuditSettings, parse_class_names
from celm.auditing.sources import Sources, collect_sources
from celm.base.errors import CelmError
from celm.core.probe import ProbeFunction, probe
from celm.core.weights import ClientWeights, normalise_weights
from celm.experiment.presets import with_audit_preset
from celm.models.adapters import adapt_for_probe
from celm.rules.celm_parts.attendance import Attendance

ClientModels = Mapping[str, Any] | str | Path | Sequence[str | Path]
_SINGLE_THREAD_MAX_VALUES = 1_000_000
"""Models with fewer values are probed by one thread; more threads do not help."""


def audit(
    global_model: nn.Module | Mapping[str, Tensor] | str | Path | None,
    clients: ClientModels,
    *,
    classes: int | Sequence[str],
    input_shape: Sequence[int] | int = (),
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    preset: str | None = "trust",
    strict: bool = False,
    watch: AuditCallback | None = None,
    prober: ProbeFunction = probe,
    **settings: Any,
) -> Audit:
    """Estimate the contribution of each client from models alone.

    Args:
        global_model: the model that the clients started from: a module, a state dict or a file. None if every round has
            its own, in the round's folder.
        clients: models or files by name, or one or several folders of files.
        classes: the number of classes, or their names.
        input_shape: shape of one input; a whole number is the length of a flat input.
        model: the architecture: a module, a name, `package.module:factory`, or a folder with a Hugging Face
            config.json. By default `global_model`, if that is a module.
        out: folder for the report and the ledger. An audit that was stopped is resumed there.
        preset: `trust` is for members that may cheat: calibrated evidence, and a check of which clients trained. None
            gives the paper's evidence. Settings that are given take precedence.
        strict: whether the first client that cannot be audited is an error. Otherwise it is excluded, with a reason.
        watch: called with the number of models that are done and the number of all models.
        prober: the probe; a `celm.engines.ray_prober.RayProber` probes on a Ray cluster.
        settings: the other settings of `AuditSettings`.
    """
    architecture = model if isinstance(model, nn.Module) else None
    if model is None and isinstance(global_model, nn.Module):
        architecture = global_model
    model_settings = {
        "classes": parse_class_names(classes if isinstance(classes, int | str) else list(classes)),
        "input_shape": (input_shape,) if isinstance(input_shape, int) else tuple(input_shape),
        "model": model if isinstance(model, str) else None,
    }
    plain_settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in settings.items()
    }
    preset_settings, warning = with_audit_preset(plain_settings, preset)
    if warning:
        warnings.warn(warning, stacklevel=2)
    audit_settings = AuditSettings.parse(preset_settings | model_settings)
    sources = collect_sources(global_model, clients)
    progress = AuditProgress(sources.num_models, watch)
    manifest = Manifest()

    def run(cache_dir: Path | None) -> dict[str, Any]:
        audited = build_audited_model(audit_settings, architecture, sources.rounds[0].global_model)
        with _thread_count(audited.settings.threads or _choose_thread_count(audited.model)):
            keep_inputs = len(sources.rounds) > 1
            cached_prober = _make_prober(audited, manifest, cache_dir, keep_inputs, prober)
            loader = CheckpointLoader.for_model(audited, manifest)
            reader = None
            if audited.settings.evidence == "head":
                reader = HeadReader.for_model(cached_prober.module, audited.settings)
            auditor = RoundAuditor(audited.settings, loader, cached_prober, progress, strict, reader)
            return _run_audit(sources, auditor)

    if out is None:
        return Audit(run(None))
    inputs = _describe_inputs(global_model, clients, Path(out))
    folder = AuditFolder(Path(out), {"settings": audit_settings.to_dict(), "inputs": inputs})
    with folder.lock():
        return write_audit(folder, run(folder.probes), manifest, inputs)


def _run_audit(sources: Sources, auditor: RoundAuditor) -> dict[str, Any]:
    """Audit the rounds in order and return the document of the audit."""
    settings = auditor.settings
    state, weights = RoundState(), SuggestedWeights.initial(settings, len(sources.rounds) == 1)
    records: list[dict[str, Any]] = []
    latest: Findings | None = None
    excluded: dict[str, str] = {}
    for number, round in enumerate(sources.rounds, start=1):
        result = auditor.audit(round, state)
        state = result.state
        excluded |= {name: with_round(round.name, reason) for name, reason in result.excluded.items()}
        if result.findings is not None:
            latest = result.findings
            weights = weights.update(latest.scores, [source.name for source in round.clients], latest.flags)
        records.append(
            make_audited_round(number, round.name, result.findings, result.excluded, weights.by_client)
        )
    if latest is None:
        name, reason = next(iter(excluded.items()))
        raise CelmError(f"no client can be audited; first client {name}: {reason}")
    notes = auditor.loader.manifest.notes
    return make_document(settings, latest, records, weights.by_client, excluded, notes, sources.ignored)


@dataclass(frozen=True)
class SuggestedWeights:
    """Weights over the rounds of an audit, smoothed as by the rule `celm` in its warm-up.

    Of a single round they are the scores. A client that is flagged in the last round in which it was scored has
    weight 0. Unless evidence is the paper's, weights are scaled by response rates. An audit does not know which
    clients were asked: a client counts as asked in every round from the first one in which it has a file.
    """

    beta: float
    unscaled: ClientWeights = field(default_factory=ClientWeights)
    attendance: Attendance | None = None
    """None with the paper's evidence."""
    flagged: frozenset[str] = frozenset()

    @classmethod
    def initial(cls, settings: AuditSettings, single_round: bool = False) -> SuggestedWeights:
        """Return the weights before the first round."""
        beta = 0.0 if single_round else settings.beta
        return cls(beta, attendance=None if settings.evidence == "paper" else Attendance())

    def update(
        self, scores: Mapping[str, float], clients: Iterable[str], flagged: Iterable[str] = ()
    ) -> SuggestedWeights:
        """Smooth the weights with the scores of a round. `clients` have a file in it, usable or not."""
        attendance = self.attendance
        newcomers = () if attendance is None else attendance.newcomers(scores)
        unscaled = self.unscaled.smooth(scores, self.beta, reset=newcomers)
        if attendance is not None and any(scores.values()):  # a round without evidence is not counted
            requested = {*attendance.requests, *unscaled.by_client, *clients}
            attendance = attendance.record(requested, replied=scores)
        flags = self.flagged.difference(scores).union(flagged)
        return replace(self, unscaled=unscaled, attendance=attendance, flagged=flags)

    @property
    def by_client(self) -> Mapping[str, float]:
        """The weight of every client that was scored so far; sums to 1, or to 0 if all are flagged."""
        scaled = self.unscaled if self.attendance is None else self.attendance.apply(self.unscaled)
        weights = scaled.by_client
        if self.flagged.isdisjoint(weights):
            return weights
        kept = normalise_weights({name: w for name, w in weights.items() if name not in self.flagged})
        return {name: kept.get(name, 0.0) for name in weights}


def _make_prober(
    audited: AuditedModel,
    manifest: Manifest,
    cache_dir: Path | None,
    keep_inputs: bool,
    probe_fn: ProbeFunction,
) -> CachedProber:
    """Build the prober of a model, and record the files on which it depends."""
    settings = audited.settings
    fixed_inputs = read_fixed_inputs(settings)
    config_file = settings.model and f"{settings.model}/config.json"
    manifest.add_other_files({"fixed_inputs": settings.fixed_inputs, "configuration": config_file})
    module = adapt_for_probe(
        audited.model,
        settings.adapters,
        settings.input_shape,
        len(settings.classes),
        head_outputs=settings.head_outputs,
        fixed_inputs=fixed_inputs,
        seed=settings.seed,
    )
    return CachedProber(module, settings, fixed_inputs, cache_dir, keep_inputs, probe_fn)


@contextmanager
def _thread_count(count: int) -> Iterator[None]:
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def _choose_thread_count(model: nn.Module) -> int:
    num_values = sum(tensor.numel() for tensor in model.state_dict().values())
    return 1 if num_values < _SINGLE_THREAD_MAX_VALUES else torch.get_num_threads()


def _describe_inputs(global_model: Any, clients: Any, folder: Path) -> dict[str, Any]:
    """Return the named paths, relative to the audit's folder; None for models in memory."""

    def format_path(value: Any) -> str | None:
        return relative_path(Path(value), folder) if isinstance(value, str | Path) else None

    if isinstance(clients, Mapping):
        return {"global": format_path(global_model), "clients": None}
    paths = [clients] if isinstance(clients, str | Path) else list(clients)
    return {"global": format_path(global_model), "clients": [format_path(path) for path in paths]}
