"""Random label skew: the Dirichlet split of the paper's authors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from celm.base.errors import CelmError
from celm.data.split import Indices, Partition, Split, name_clients
from celm.data.splits.helpers import concat_shuffled, invalid_setting, shuffle_rows_by_class

_MAX_DRAWS = 1000


@dataclass(frozen=True)
class Dirichlet(Split):
    """Random label skew: each client's class proportions are Dirichlet.

        q_i ~ Dirichlet(alpha 1_K)        for each client i in order
        s_ik = q_ik / sum_j q_jk          the client's share of class k
        cuts_k = floor(cumsum_i(s_ik) n_k)

    Each class is shuffled and cut at these positions; the pieces go to the clients in order. A small alpha means strong
    skew. The paper uses .01, .05 and .1; at seed 42 this code reproduces the authors' tables exactly. The Dirichlet is
    over the classes of a client, not over the clients of a class as in NIID-Bench.

    A client may get no samples. With `min_samples`, the shares are drawn again until every client has that many.
    """

    alpha: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 0.05
    """Concentration; a smaller value gives a stronger skew."""
    min_samples: Annotated[int, Field(ge=0)] = 0
    """Draw again until every client has at least this many samples."""

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        if clients < 1:
            raise invalid_setting("clients", f"at least 1 needed, not {clients}")
        if self.min_samples * clients > len(labels):
            raise invalid_setting(
                "min_samples",
                f"{clients} clients cannot have {self.min_samples} of {len(labels)} samples each",
            )
        return Partition(
            name_clients(draw_dirichlet_parts(labels, classes, clients, rng, self.alpha, self.min_samples))
        )


def draw_dirichlet_parts(
    labels: Indices, classes: int, clients: int, rng: np.random.RandomState, alpha: float, min_samples: int
) -> list[Indices]:
    """Return the rows of each client; see `Dirichlet`."""
    sizes = np.bincount(labels, minlength=classes)
    for _ in range(_MAX_DRAWS):
        shares = _draw_class_shares(classes, clients, rng, alpha)
        cuts = np.floor(np.cumsum(shares, axis=0) * sizes).astype(np.int64)
        cuts[-1] = sizes  # so that rounding leaves no sample over
        totals = np.diff(cuts.sum(axis=1), prepend=0)
        if totals.min() >= min_samples:
            break
    else:
        raise CelmError(
            f"setting 'split.min_samples': none of {_MAX_DRAWS} draws gave every client {min_samples} samples",
            "lower it, or raise split.alpha",
        )
    rows_by_class = shuffle_rows_by_class(labels, classes, rng)
    pieces = [np.split(class_rows, cuts[:-1, k]) for k, class_rows in enumerate(rows_by_class)]
    return [concat_shuffled([class_pieces[i] for class_pieces in pieces], rng) for i in range(clients)]


def _draw_class_shares(
    classes: int, clients: int, rng: np.random.RandomState, alpha: float
) -> NDArray[np.float64]:
    """Return each client's share of each class `[N, K]`; columns sum to one.

    With a tiny alpha a draw can underflow. A client whose complete draw underflows gets one class (the limit of alpha
    to 0). A class for which all draws underflow is shared equally.
    """
    draws = np.stack([rng.dirichlet(np.full(classes, alpha)) for _ in range(clients)])
    for row in draws:
        if not np.isfinite(row).all():
            row[:] = np.eye(classes)[rng.randint(classes)]
    total = draws.sum(axis=0)
    return np.where(total > 0, draws / np.where(total > 0, total, 1), 1 / clients)
