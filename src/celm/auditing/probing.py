"""Probes of many models from R starts each, a few models at a time, each kept as soon as it is done.

All models start from the same noise, `[R, K, *shape]`, a function of the seed; in later rounds a client's probe starts
where its last one ended. R starts of K classes are R K targets of one batched probe. What a probe found depends on the
model's tensors, the settings and the start alone, so it is kept under a digest of these: an audit that is taken up
again finds what was done, and a file that changed meanwhile is probed anew.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import torch
from torch import Tensor

from celm.auditing.adapters import Subject
from celm.auditing.settings import Settings
from celm.base.errors import CelmError
from celm.base.files import digest, dump_json, read_tensors, write_tensors
from celm.engines.ray_probe import RayProber
from celm.method.calibration import Calibration
from celm.method.probe import ProbeFunction, model_noise, probe
from celm.method.stacking import Stack

AT_ONCE = 128 << 20
"""Bytes of models that are probed in one batch; a larger model goes alone. On a cluster, so many for each CPU."""
MOST = 16
VALUES = 1 << 22
"""Input values in one batch."""
JUDGING = ("confidence", "beta", "partial", "movement")
"""Settings that matter only after the probe, or before it."""


@dataclass(frozen=True)
class Probed:
    """What one model's probes found: logits `[R, K]` and, for a next round, where they ended, `[R, K, *shape]`."""

    key: str
    logits: Tensor
    inputs: Tensor | None
    calibration: Calibration | None
    """Of this model alone, for evidence that needs it."""

    def tensors(self) -> dict[str, Tensor]:
        found = {"logits": self.logits} | ({} if self.inputs is None else {"inputs": self.inputs})
        return found | ({} if self.calibration is None else asdict(self.calibration))

    def complete(self, inputs: bool, calibrated: bool) -> bool:
        return not (inputs and self.inputs is None) and not (calibrated and self.calibration is None)


def recalled(key: str, tensors: Mapping[str, Tensor]) -> Probed | None:
    if "logits" not in tensors:
        return None
    parts = {name: tensors[name] for name in ("level", "spread", "overall") if name in tensors}
    calibration = Calibration(**parts) if len(parts) == 3 else None
    return Probed(key, tensors["logits"], tensors.get("inputs"), calibration)


class Prober:
    """`kept` is the folder of finished probes, `further` says whether more than one round is to come; `by` probes."""

    def __init__(
        self,
        subject: Subject,
        how: Settings,
        held: Mapping[str, Tensor],
        kept: Path | None,
        further: bool,
        by: ProbeFunction = probe,
    ) -> None:
        self.by = by
        self.subject, self.how, self.kept, self.further = subject, how, kept, further
        tables = how.tables() | {"input_shape": subject.input_shape, "hold": digest(held)}
        depends = {name: value for name, value in tables.items() if name not in JUDGING}
        self.calibrated = how.evidence == "calibrated"
        self.settings = hashlib.sha256(dump_json(depends).encode()).hexdigest()
        classes = len(how.classes)
        self.start = torch.stack(
            [model_noise(how.seed, f"start-{r}", classes, subject.input_shape) for r in range(how.starts)]
        )
        self.size: int = sum(tensor.nbytes for tensor in subject.module.state_dict().values())

    @property
    def models_here(self) -> int:
        """Models that fit into one batch in this process."""
        return max(1, min(MOST, AT_ONCE // max(1, self.size)))

    def models_at_once(self) -> int:
        return self.models_here * (self.by.width if isinstance(self.by, RayProber) else 1)

    def key(self, tensors: str, last: str) -> str:
        """Of a model, by the digest of its tensors, and of the probe it starts from."""
        return hashlib.sha256(f"{self.settings}|{tensors}|{last}".encode()).hexdigest()

    def recall(self, keys: Sequence[str], keep: bool) -> list[Probed] | None:
        """Finished probes; None where any of them is missing or damaged, as a batch is probed as a whole."""
        found = []
        for key in keys:
            if self.kept is None or not (path := self.kept / f"{key}.safetensors").is_file():
                return None
            try:
                tensors, _ = read_tensors(path)
            except CelmError:
                return None
            probed = recalled(key, tensors)
            if probed is None or not probed.complete(keep, self.calibrated):
                return None
            found.append(probed)
        return found

    def run(
        self,
        states: Sequence[Mapping[str, Tensor]],
        keys: Sequence[str],
        last: Sequence[Probed | None],
        keep: bool,
    ) -> list[Probed]:
        """Probe one batch of models and keep what is found; with `keep`, also where the probes ended."""
        how, starts = self.how, [self.begin(each) for each in last]
        classes = list(range(len(how.classes)))
        chunk = how.probe.chunk or max(1, min(512, VALUES // math.prod(self.subject.input_shape)))
        found = self.by(
            Stack(self.subject.module, [self.subject.state(state) for state in states]),
            torch.stack([start.flatten(0, 1) for start in starts]),
            classes * how.starts,
            steps=how.probe.steps,
            lr=how.probe.lr,
            l2=how.probe.l2,
            precision=getattr(torch, how.probe.precision),
            keep=keep,
            chunk=chunk,
            seed=how.seed,
            calibrated=self.calibrated,
        )
        done = []
        for m, key in enumerate(keys):
            logits = found.logits[m].view(how.starts, -1)
            own = None
            if found.calibration is not None:
                level, spread, overall = (part[m : m + 1] for part in astuple(found.calibration))
                own = Calibration(level[:, classes], spread[:, classes], overall)
                logits = logits * own.overall + own.level
            ended = found.inputs[m].view(self.start.shape) if keep else None
            done.append(Probed(key, logits, ended, own))
        if self.kept is not None:
            for each in done:
                write_tensors(self.kept / f"{each.key}.safetensors", each.tensors(), {})
        return done

    def begin(self, last: Probed | None) -> Tensor:
        """Where the last round's probe ended, unless that ran off to infinity; else the common noise."""
        if last is None:
            return self.start
        kept = last.inputs if last.inputs is not None else (self.recall([last.key], True) or [last])[0].inputs
        return kept if kept is not None and bool(kept.isfinite().all()) else self.start
