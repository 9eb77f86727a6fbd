"""What a round's probes say, and how surely.

    u [R, N, K], g [R, K]     logits of N clients and of the model they started from, R starts of the probe
    Q, shares, scores         of the logits' means over starts (celm.method.evidence, or .calibration by a setting)
    SE(x)                     = std_r(x^r) / sqrt(R),  x^r the number as start r alone gives it, ddof 1
    distribution              = Q / Σ Q                             estimated client x class distribution

All models start from the same R draws of noise, so that what differs between clients is the clients. A standard error
is that of the probe: it knows nothing of how data or training would vary.

**Holdings.** A client holds class k where its model can be driven further for k than the model it started from:
d_ik = u_ik - g_k is positive. It surely does where d_ik - t SE(d_ik) > 0, and surely does not where
d_ik + t SE(d_ik) ≤ 0, with t the quantile of Student's distribution at 1 - (1 - γ) / (N K) and R - 1 degrees of
freedom, so that all N K statements hold together at confidence γ. Evidence has one level for all classes; this has one
for each, so it does not depend on how high a class can be driven at all. **Sole holder** of a class is the one client
that surely holds it, where all others surely do not.

**Free-rider.** A z-score cannot carry the flag: among N clients it never falls below -sqrt(N - 1), and in a large crowd
somebody is always low. It is shown; the flag is a statement about the client itself. Every class that is held is
divided equally among its holders; the client's part of all classes is its coverage. In its favour, what it may hold
counts as held by it, and what others may hold does not. It is flagged where

- its coverage is below half of an equal part, 1 / (2 N), and it is the sole holder of no class: it brings little, and
  nothing that others do not bring; or
- its tensors are those it was given, or another client's: facts that need no probe; or
- with calibrated evidence, it hardly moved the global model (celm.method.movement): scaling a copy is no training. It
  then has no evidence and holds nothing, whatever its logits.

So an honest client with few and common classes is flagged like a free-rider with the same data: the models do not tell
them apart. With one start there is no standard error, and no statement that needs one; with one client, nobody to share
with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from celm.auditing.settings import Settings
from celm.method.calibration import Calibration, calibrated_evidence
from celm.method.evidence import bias, evidence, scores, shares
from celm.method.movement import IDLE, idle
from celm.metrics.free_riders import z_scores

LITTLE = 0.5
"""Of an equal part: less is little."""

Array = NDArray[np.float64]
Table = NDArray[np.bool_]


Rule = Callable[[Tensor, Tensor], Tensor]
"""Client logits `[N, K]` and global logits `[K]` to evidence `[N, K]`."""


@dataclass(frozen=True)
class Copy:
    """A client whose tensors are not its own."""

    of: str | None
    """Another client; None for the model it was given."""

    @property
    def reason(self) -> str:
        if self.of is None:
            return "returned the model it was given, unchanged"
        return f"sent the same tensors as {self.of}"


@dataclass(frozen=True)
class Holdings:
    """Who holds which class, `[N, K]` each: surely, and possibly."""

    surely: Table
    possibly: Table

    def without(self, clients: Table) -> Holdings:
        """Where these `[N]` hold nothing."""
        others = ~clients[:, None]
        return Holdings(self.surely & others, self.possibly & others)

    def sole(self) -> dict[int, int]:
        """Class to the client that alone holds it, by their numbers."""
        alone = (self.surely.sum(axis=0) == 1) & (self.possibly.sum(axis=0) == 1) & (len(self.surely) > 1)
        return {int(k): int(self.surely[:, k].argmax()) for k in np.flatnonzero(alone)}

    def coverage(self) -> Array:
        """Of each client `[N]`, its part of all classes that are held, at most."""
        others = self.surely.sum(axis=0) - self.surely
        parts = self.possibly / np.maximum(1, self.possibly + others)
        return np.asarray(parts.sum(axis=1) / max(1, int(self.possibly.any(axis=0).sum())), dtype=np.float64)


@dataclass(frozen=True)
class Findings:
    """Of one round; clients in client order."""

    evidence: dict[str, list[float]]
    shares: dict[str, list[float]]
    distribution: dict[str, list[float]]
    scores: dict[str, float]
    probe_standard_errors: dict[str, float | None]
    z_scores: dict[str, float]
    holds: dict[str, list[str]] | None
    """Client to the classes it surely holds; None where one start cannot tell."""
    sole_holders: dict[str, str]
    """Class to client."""
    flags: dict[str, str]
    bias: float
    movement: dict[str, float | None] | None
    """Of each client, None where there is nobody to compare with; of nobody where it was not looked at."""


def by_calibration(models: Sequence[Calibration | None], still: Tensor | None) -> Rule:
    """Calibrated evidence, for which the global model's logits are of no account; who stands `still` `[N]` has none."""
    known = [model for model in models if model is not None]
    parts = [torch.cat(part) for part in zip(*map(astuple, known), strict=True)]
    calibration = Calibration(*parts)
    return lambda clients, _: calibrated_evidence(calibration.gains(clients), calibration, still)


def judge(
    client_logits: Mapping[str, Tensor],
    global_logits: Tensor,
    copies: Mapping[str, Copy],
    how: Settings,
    calibrations: Mapping[str, Calibration | None] | None = None,
    moved: Tensor | None = None,
) -> Findings:
    """`client_logits`: client to `[R, K]`, all finite; `global_logits`: `[R, K]`; calibrations where evidence is.

    `moved` `[N]` is how far each client moved the global model, where that was looked at.
    """
    names = list(client_logits)
    u = torch.stack([client_logits[name].double() for name in names], dim=1)
    g = global_logits.double()
    far = torch.full((len(names),), torch.nan) if moved is None else moved
    still = idle(far)
    rule = evidence if calibrations is None else by_calibration([calibrations[name] for name in names], still)
    Q = rule(u.mean(dim=0), g.mean(dim=0))
    score = dict(zip(names, scores(Q).tolist(), strict=True))
    z = z_scores(score)
    error = standard_error([scores(rule(u[r], g[r])).numpy() for r in range(len(g))])
    errors = dict(zip(names, [None] * len(names) if error is None else error.tolist(), strict=True))
    held = holdings((u - g[:, None]).numpy(), how.confidence)
    held = None if held is None else held.without(still.numpy())
    sole = {} if held is None else held.sole()
    flags = {name: copies[name].reason for name in names if name in copies}
    for name, part in zip(names, far.tolist(), strict=True):
        if part < IDLE:
            flags.setdefault(
                name, f"did not train: it moved by {part:.2f} of what is usual, less than {IDLE}"
            )
    for i, reason in ({} if held is None else little(held, sole)).items():
        more = (
            f"score {100 * score[names[i]]:.1f} ± {100 * errors[names[i]]:.1f} %, z-score {z[names[i]]:.2f}"
        )
        flags.setdefault(names[i], f"{reason} ({more})")
    total = float(Q.sum())
    return Findings(
        evidence=rows(names, Q),
        shares=rows(names, shares(Q)),
        distribution=rows(names, Q / total if total > 0 else Q),
        scores=score,
        probe_standard_errors=errors,
        z_scores={name: z[name] for name in names},
        holds=None if held is None else named(held.surely, names, how.classes),
        sole_holders={how.classes[k]: names[i] for k, i in sole.items()},
        flags={name: flags[name] for name in names if name in flags},
        bias=float(bias(g.mean(dim=0))),
        movement=None if moved is None else dict(zip(names, map(number, moved.tolist()), strict=True)),
    )


def number(value: float) -> float | None:
    """None for what is none, as JSON has no NaN."""
    return None if math.isnan(value) else value


def standard_error(samples: Sequence[Array] | Array) -> Array | None:
    """Of the mean over starts; None for a single one."""
    if len(samples) < 2:
        return None
    return np.asarray(np.std(samples, axis=0, ddof=1) / math.sqrt(len(samples)), dtype=np.float64)


def holdings(rises: Array, confidence: float) -> Holdings | None:
    """From how much further each client goes than the global model, `[R, N, K]`; None with a single start."""
    error = standard_error(rises)
    if error is None:
        return None
    mean = rises.mean(axis=0)
    bound = student.ppf(1 - (1 - confidence) / mean.size, len(rises) - 1) * error
    return Holdings(mean - bound > 0, mean + bound > 0)


def little(held: Holdings, sole: Mapping[int, int]) -> dict[int, str]:
    """The clients that bring little and nothing of their own, by number, and what is said of them."""
    count, classes = held.surely.shape
    if count < 2 or not held.surely.any():
        return {}
    told = {}
    for i, part in enumerate(held.coverage()):
        if part < LITTLE / count and i not in sole.values():
            what = f"holds {int(held.possibly[i].sum())} of {classes} classes at most, none of them alone"
            least = f"less than half of an equal part of {100 / count:.1f} %"
            told[i] = f"{what}: {100 * part:.1f} % of what is held, {least}"
    return told


def rows(names: Sequence[str], table: Tensor) -> dict[str, list[float]]:
    return dict(zip(names, table.tolist(), strict=True))


def named(held: Table, names: Sequence[str], classes: Sequence[str]) -> dict[str, list[str]]:
    return {
        name: [classes[k] for k in np.flatnonzero(row).tolist()]
        for name, row in zip(names, held, strict=True)
    }
