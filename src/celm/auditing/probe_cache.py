"""Probes of many models from R starts each, a few models at a time. Each probe is saved as soon as it is done.

All models start from the same noise, `[R, K, *shape]`, a function of the seed. In later rounds the probe of a client
starts where its last one ended. R starts of K classes are R K targets of one batched probe. A probe depends on the
model's tensors, the settings and the start alone, so it is saved under a digest of these. A resumed audit loads the
probes that are done; a file that has changed since is probed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from celm.auditing.analysis import make_evidence_model
from celm.auditing.checkpoint_loader import LoadedModel
from celm.auditing.settings import AuditSettings
from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import dump_json, read_tensors, tensor_digest, write_tensors
from celm.core.calibration import Calibration
from celm.core.model_stack import ModelStack
from celm.core.probe import ProbeFunction, model_noise, probe
from celm.engines.ray_prober import RayProber

BATCH_BYTES = 128 << 20
"""Bytes of models in one batch; a larger model is probed alone. On a cluster, a batch for each CPU."""
_MAX_MODELS = 16
_BATCH_VALUES = 1 << 22
"""Input values in one batch."""
_ANALYSIS_ONLY = ("confidence", "beta", "partial", "movement", "agreement")
"""Settings that a probe does not depend on."""


@dataclass(frozen=True)
class CachedProbe:
    """The probes of one model from all starts."""

    key: str
    """Digest of everything that the probes depend on."""
    logits: Tensor
    """Raw logits `[R, K]`."""
    inputs: Tensor | None
    """Final inputs `[R, K, *shape]`; None if they are not needed, or can be loaded."""
    calibration: Calibration | None
    """Calibration of this model alone, for calibrated evidence."""

    @classmethod
    def from_tensors(cls, key: str, tensors: Mapping[str, Tensor]) -> CachedProbe | None:
        """Build a probe from the tensors of its file; None if the logits are missing."""
        if "logits" not in tensors:
            return None
        parts = {name: tensors[name] for name in ("mean", "std", "rms_std") if name in tensors}
        calibration = Calibration(**parts) if len(parts) == 3 else None
        return cls(key, tensors["logits"], tensors.get("inputs"), calibration)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        tensors = {"logits": self.logits} | ({} if self.inputs is None else {"inputs": self.inputs})
        return tensors | ({} if self.calibration is None else asdict(self.calibration))

    def is_complete(self, needs_inputs: bool, needs_calibration: bool) -> bool:
        """Return whether the needed parts are there."""
        return not (needs_inputs and self.inputs is None) and not (
            needs_calibration and self.calibration is None
        )


class CachedProber:
    """Probes models, or loads their saved probes.

    Args:
        module: the module to probe.
        settings: settings of the audit.
        fixed_inputs: the arguments of the model that are not probed.
        cache_dir: folder of saved probes; if None, probes are not saved.
        keep_inputs: whether probes of a later round start from the final inputs.
        probe_fn: the probe itself, such as a `RayProber`.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: AuditSettings,
        fixed_inputs: Mapping[str, Tensor],
        cache_dir: Path | None,
        keep_inputs: bool,
        probe_fn: ProbeFunction = probe,
    ) -> None:
        self.module = module
        self._settings = settings
        self._cache_dir = cache_dir
        self._keep_inputs = keep_inputs
        self._probe_fn = probe_fn
        self._transform = make_evidence_model(settings).transform
        values = settings.to_dict() | {"fixed_inputs": tensor_digest(fixed_inputs)}
        probe_settings = {name: value for name, value in values.items() if name not in _ANALYSIS_ONLY}
        self._settings_digest = bytes_sha256(dump_json(probe_settings).encode())
        noise = [
            model_noise(settings.seed, f"start-{r}", len(settings.classes), settings.input_shape)
            for r in range(settings.num_starts)
        ]
        self._initial_inputs = torch.stack(noise)
        self._model_bytes: int = sum(tensor.nbytes for tensor in module.state_dict().values())

    @property
    def models_per_process(self) -> int:
        """Models in one batch of this process."""
        return max(1, min(_MAX_MODELS, BATCH_BYTES // max(1, self._model_bytes)))

    @property
    def models_per_call(self) -> int:
        """Models in one call of `probe`; on a cluster, a batch for each CPU."""
        processes = self._probe_fn.parallelism if isinstance(self._probe_fn, RayProber) else 1
        return self.models_per_process * processes

    def probe(
        self,
        models: Sequence[LoadedModel],
        previous: Mapping[str, CachedProbe],
        keep_inputs: bool = False,
    ) -> list[CachedProbe]:
        """Probe a batch of models, or load their saved probes.

        `previous` are the probes of the last round by name. With `keep_inputs`, the final inputs are returned also if
        no round follows.
        """
        keep_inputs = keep_inputs or self._keep_inputs
        starts = [previous.get(model.name) for model in models]
        keys = [
            self._cache_key(model.digest, "" if start is None else start.key)
            for model, start in zip(models, starts, strict=True)
        ]
        return self._load(keys, keep_inputs) or self.run(models, keys, starts, keep_inputs)

    def for_next_round(self, probe: CachedProbe) -> CachedProbe:
        """Return the probe as the next round needs it; inputs that are on disk are not kept in memory."""
        return probe if self._cache_dir is None else replace(probe, inputs=None)

    def _cache_key(self, model_digest: str, previous_key: str) -> str:
        return bytes_sha256(f"{self._settings_digest}|{model_digest}|{previous_key}".encode())

    def _load(self, keys: Sequence[str], keep_inputs: bool) -> list[CachedProbe] | None:
        """Load a batch of probes; None if one is missing or damaged, because a batch is probed as a whole."""
        probes = []
        for key in keys:
            if self._cache_dir is None or not (path := self._cache_dir / f"{key}.safetensors").is_file():
                return None
            try:
                tensors, _ = read_tensors(path)
            except CelmError:
                return None
            cached = CachedProbe.from_tensors(key, tensors)
            if cached is None or not cached.is_complete(keep_inputs, self._transform is not None):
                return None
            probes.append(cached)
        return probes

    def run(
        self,
        models: Sequence[LoadedModel],
        keys: Sequence[str],
        starts: Sequence[CachedProbe | None],
        keep_inputs: bool,
    ) -> list[CachedProbe]:
        """Probe a batch of models and save the probes. `starts` are the previous probes of the same models."""
        settings, shape = self._settings, self._settings.input_shape
        classes = list(range(len(settings.classes)))
        states = [model.state for model in models]
        result = self._probe_fn(
            ModelStack(self.module, states),
            torch.stack([self._starting_inputs(start).flatten(0, 1) for start in starts]),
            classes * settings.num_starts,
            steps=settings.probe.steps,
            lr=settings.probe.lr,
            l2=settings.probe.l2,
            precision=getattr(torch, settings.probe.precision),
            keep_inputs=keep_inputs,
            chunk=settings.probe.chunk or max(1, min(512, _BATCH_VALUES // math.prod(shape))),
            transform=self._transform,
        )
        probes = []
        for m, key in enumerate(keys):
            logits = result.logits[m].view(settings.num_starts, -1)
            calibration = None
            if result.measurements is not None:
                measured: Calibration = result.measurements[m : m + 1]
                calibration = Calibration(
                    measured.mean[:, classes], measured.std[:, classes], measured.rms_std
                )
                logits = logits * calibration.rms_std + calibration.mean
            inputs = result.inputs[m].view(self._initial_inputs.shape) if keep_inputs else None
            probes.append(CachedProbe(key, logits, inputs, calibration))
        if self._cache_dir is not None:
            for cached in probes:
                write_tensors(self._cache_dir / f"{cached.key}.safetensors", cached.to_tensors(), {})
        return probes

    def _starting_inputs(self, previous: CachedProbe | None) -> Tensor:
        """Return the final inputs of the previous probe if they are finite, otherwise the common noise."""
        if previous is None:
            return self._initial_inputs
        inputs = previous.inputs
        if inputs is None:
            inputs = (self._load([previous.key], True) or [previous])[0].inputs
        return inputs if inputs is not None and bool(inputs.isfinite().all()) else self._initial_inputs
