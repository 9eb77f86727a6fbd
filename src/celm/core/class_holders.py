"""Which client holds which class: one test for audits, runs and live federations.

    x [R, N, K]     R replicates of a measurement of N clients and K classes; NaN if a replicate is missing
    m, SE           mean over the replicates of a client and class, and its standard error, ddof 1
    t               quantile of Student's distribution at 1 - (1 - γ) / (N K), replicates - 1 degrees of freedom

    surely          m - t SE > φ
    no evidence     m + t SE <= 0
    possibly        otherwise
    sole            surely, and all other clients have no evidence

|            | replicate                           | x                                            | φ   |
|------------|-------------------------------------|----------------------------------------------|-----|
| audit      | a random start of the probe         | logit of the client minus the global model's | 0   |
| run,       | a probed round after the first one, | evidence, as a fraction of that of the       | 0.1 |
| federation | in which the client took part       | client's best class in the round             |     |

Evidence is not negative, so a client has no evidence for a class if it had none in any of these rounds. With fewer
than two replicates nothing is surely held. The quantile makes all N K statements hold jointly for independent
replicates. Starts of a probe are independent; rounds are not. So φ was chosen, and the false rates were measured, on
federations with known data (results/claims). The first round is left out: it begins at a model that has learnt
nothing, and evidence then shows what that model prefers. An update that shows no training has no evidence.

In an audit, the logit of a class that a client lacks falls below the global model's, so the one client is the **sole
holder**. Evidence of rounds ends at zero, and a client with few samples of a class often has none. So runs and
federations say **sole evidence**: other clients may hold the class too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

MIN_FRACTION = 0.1
"""φ of runs and federations."""
CONFIDENCE = 0.95
"""γ of runs and federations. An audit has a setting for it."""
UNTRAINED_FLAGS = frozenset({"unchanged", "idle"})
"""Kinds of flags (celm.federation.flags) that say that an update shows no training."""
_IGNORED_ROUNDS = 1

_FloatArray = NDArray[np.float64]
_BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class ClassHolders:
    """Masks `[N, K]` of the classes that each client surely holds, and surely or possibly holds."""

    certain: _BoolArray
    possible: _BoolArray

    def without(self, mask: _BoolArray) -> ClassHolders:
        """Return the same with no classes for the clients in the mask `[N]`."""
        others = ~mask[:, None]
        return ClassHolders(self.certain & others, self.possible & others)

    def sole_holders(self) -> dict[int, int]:
        """Return the index of the sole holder, by class index."""
        has_one_holder = (
            (self.certain.sum(axis=0) == 1) & (self.possible.sum(axis=0) == 1) & (len(self.certain) > 1)
        )
        return {int(k): int(self.certain[:, k].argmax()) for k in np.flatnonzero(has_one_holder)}

    def coverage(self) -> _FloatArray:
        """Return the largest part `[N]` of all held classes that each client may have."""
        others = self.certain.sum(axis=0) - self.certain
        fractions = self.possible / np.maximum(1, self.possible + others)
        return np.asarray(
            fractions.sum(axis=1) / max(1, int(self.possible.any(axis=0).sum())), dtype=np.float64
        )


def class_holders(replicates: _FloatArray, confidence: float, floor: float = 0.0) -> ClassHolders | None:
    """Test x `[R, N, K]` with φ = `floor`; None if no client has two replicates of a class."""
    present = ~np.isnan(replicates)
    count = present.sum(axis=0)
    if count.max(initial=0) < 2:
        return None
    mean = np.where(present, replicates, 0.0).sum(axis=0) / np.maximum(1, count)
    deviations = np.where(present, replicates - mean, 0.0)
    variance = np.square(deviations).sum(axis=0) / np.maximum(1, count - 1)
    quantile = student.ppf(1 - (1 - confidence) / mean.size, np.maximum(1, count - 1))
    bound = quantile * np.sqrt(variance / np.maximum(1, count))
    return ClassHolders((count > 1) & (mean - bound > floor), (count > 0) & (mean + bound > 0))


@dataclass(frozen=True)
class RoundEvidence:
    """The evidence of one probed round."""

    by_client: Mapping[str, Sequence[float]]
    """Client to evidence by class. A client that was not probed is missing."""
    probed_classes: Sequence[int] | None = None
    """The classes that the round probed; None for all. The others have evidence of earlier rounds."""
    untrained: Collection[str] = ()
    """Clients whose update shows no training."""


@dataclass(frozen=True)
class ClassClaims:
    """What the probed rounds of a run or a federation show about each client's classes."""

    num_classes: int
    surely: Mapping[str, tuple[int, ...]]
    """Client to the classes that it surely holds. Clients without a probed round after the first are missing."""
    possibly: Mapping[str, tuple[int, ...]]
    """Client to further classes, which it possibly holds."""
    sole_evidence: Mapping[int, str] = field(default_factory=dict)
    """Class to the one client that surely holds it, if no other client of `surely` has evidence for it."""

    def sole_classes(self, client: str) -> tuple[int, ...]:
        """Return the classes for which the client has sole evidence."""
        return tuple(k for k, holder in self.sole_evidence.items() if holder == client)


def class_claims(rounds: Sequence[RoundEvidence]) -> ClassClaims | None:
    """Test the evidence of the probed rounds; None if no client has two probed rounds after the first.

    >>> first, second = {"a": [0.3, 0.2], "b": [0.1, 0.4]}, {"a": [2.0, 0.0], "b": [0.0, 3.0]}
    >>> third = {"a": [5.0, 0.0], "b": [1.0, 9.0]}
    >>> class_claims([RoundEvidence(evidence) for evidence in (first, second, third)])
    ClassClaims(num_classes=2, surely={'a': (0,), 'b': (1,)}, possibly={'a': (), 'b': (0,)}, sole_evidence={1: 'b'})
    """
    tested = rounds[_IGNORED_ROUNDS:]
    clients = list(dict.fromkeys(client for round in tested for client in round.by_client))
    if not clients:
        return None
    rows = [[_fractions(round, client) for client in clients] for round in tested]
    num_classes = max(len(row) for round in rows for row in round)
    missing = [math.nan] * num_classes
    replicates = np.array([[row or missing for row in round] for round in rows], dtype=np.float64)
    holders = class_holders(replicates, CONFIDENCE, MIN_FRACTION)
    if holders is None:
        return None
    return ClassClaims(
        num_classes,
        _classes_by_client(clients, holders.certain),
        _classes_by_client(clients, holders.possible & ~holders.certain),
        {k: clients[i] for k, i in holders.sole_holders().items()},
    )


def _fractions(round: RoundEvidence, client: str) -> list[float]:
    """Return a client's evidence as fractions of its best class; empty if the client was not probed."""
    row = round.by_client.get(client)
    if row is None:
        return []
    best = 0.0 if client in round.untrained else max(row, default=0.0)
    probed = set(range(len(row)) if round.probed_classes is None else round.probed_classes)
    return [(value / best if best > 0 else 0.0) if k in probed else math.nan for k, value in enumerate(row)]


def _classes_by_client(clients: Sequence[str], mask: _BoolArray) -> dict[str, tuple[int, ...]]:
    rows = zip(clients, mask, strict=True)
    return {client: tuple(np.flatnonzero(row).tolist()) for client, row in rows}
