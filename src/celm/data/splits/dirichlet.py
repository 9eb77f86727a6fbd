"""Random label skew, as the paper's authors drew it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from celm.base.errors import CelmError
from celm.data.split import Dealing, Indices, Split, named
from celm.data.splits.parts import class_rows, gathered, invalid

TRIES = 1000


@dataclass(frozen=True)
class Dirichlet(Split):
    """Random label skew: each client's appetite for the classes is a Dirichlet draw.

        q_i ~ Dirichlet(alpha 1_K)        for each client i in order
        s_ik = q_ik / sum_j q_jk          the client's share of class k
        cuts_k = floor(cumsum_i(s_ik) n_k)

    Each class is shuffled and cut there, the pieces go to the clients in order. Small alpha means strong
    skew; the paper uses .01, .05 and .1, and at seed 42 the tables of its authors come out exactly. The
    Dirichlet is over the classes of a client, not over the clients of a class as in NIID-Bench.

    A client may be left without samples. With `min_samples` the shares are drawn again until every client
    has that many.
    """

    alpha: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 0.05
    """Concentration: the smaller, the stronger the skew."""
    min_samples: Annotated[int, Field(ge=0)] = 0
    """Draw again until every client has so many."""

    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing:
        if clients < 1:
            raise invalid("clients", f"at least 1 needed, not {clients}")
        if self.min_samples * clients > len(labels):
            raise invalid(
                "min_samples",
                f"{clients} clients cannot have {self.min_samples} of {len(labels)} samples each",
            )
        return Dealing(named(drawn(labels, classes, clients, rng, self.alpha, self.min_samples)))


def drawn(
    labels: Indices, classes: int, clients: int, rng: np.random.RandomState, alpha: float, min_samples: int
) -> list[Indices]:
    sizes = np.bincount(labels, minlength=classes)
    for _ in range(TRIES):
        cuts = np.floor(np.cumsum(shares(classes, clients, rng, alpha), axis=0) * sizes).astype(np.int64)
        cuts[-1] = sizes  # all samples are dealt, whatever the sum of the shares was rounded to
        totals = np.diff(cuts.sum(axis=1), prepend=0)
        if totals.min() >= min_samples:
            break
    else:
        raise CelmError(
            f"setting 'split.min_samples': no draw of {TRIES} gave every client {min_samples} samples",
            "lower it, or raise split.alpha",
        )
    rows = class_rows(labels, classes, rng)
    pieces = [np.split(of_class, cuts[:-1, k]) for k, of_class in enumerate(rows)]
    return [gathered([of_class[i] for of_class in pieces], rng) for i in range(clients)]


def shares(classes: int, clients: int, rng: np.random.RandomState, alpha: float) -> NDArray[np.float64]:
    """`[N, K]`: each client's share of each class; columns sum to one.

    With a tiny alpha a draw can underflow. A client whose whole draw did wants one class only (the limit of
    alpha to 0); a class that nobody wants is shared equally.
    """
    wanted = np.stack([rng.dirichlet(np.full(classes, alpha)) for _ in range(clients)])
    for row in wanted:
        if not np.isfinite(row).all():
            row[:] = np.eye(classes)[rng.randint(classes)]
    total = wanted.sum(axis=0)
    return np.where(total > 0, wanted / np.where(total > 0, total, 1), 1 / clients)
