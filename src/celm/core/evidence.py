"""From probe logits to contribution scores, Eq. 8-12 of the paper.

    b      = (1/K) Σ_c u_gc                 the global model's level            (bias, Eq. 8)
    q_ic   = max(0, u_ic - b)               evidence of client i for class c    (evidence, Eq. 9)
    r_ic   = q_ic / (Σ_j q_jc + ε)          its share of that class             (shares, Eq. 10)
    ĉ_i    = (1/K) Σ_c r_ic
    c̄_i    = ĉ_i / Σ_j ĉ_j                  its score, on the simplex           (scores, Eq. 11-12)

u_ic is the logit of class c that client i's model reaches under the probe. u_gc is that of the global model from
which the client started. There are N clients and K classes. All results are float64.

Degenerate cases, each tested:

- In a class without evidence every client has share 0.
- Without any evidence all scores are 0, and the caller keeps its previous weights.
- A client with a non-finite logit has no evidence (`nonfinite_clients`).
- If a logit of the global model is not finite, no client has evidence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from celm.core.arguments import ArgumentError, as_evidence, as_tensor

_EPSILON = 1e-12


def bias(global_logits: Tensor) -> Tensor:
    """Return b, a scalar, from the global model's logits `[K]`."""
    return global_logits.double().mean()


def nonfinite_clients(client_logits: Tensor) -> Tensor:
    """Return a mask `[N]` of clients with a logit in `[N, K]` that is not finite."""
    return ~client_logits.isfinite().all(dim=1)


def evidence(client_logits: Tensor, global_logits: Tensor) -> Tensor:
    """Return Q `[N, K]` from the clients' logits `[N, K]` and the global model's `[K]`.

    >>> evidence(torch.tensor([[3.0, 1.0], [2.0, 5.0]]), torch.tensor([1.0, 3.0]))
    tensor([[1., 0.],
            [0., 3.]], dtype=torch.float64)
    """
    client_logits, global_logits = as_tensor(client_logits, "logits"), as_tensor(global_logits, "logits")
    if client_logits.ndim != 2 or client_logits.shape[1:] != global_logits.shape:
        shapes = f"{list(client_logits.shape)} and {list(global_logits.shape)}"
        raise ArgumentError(f"logits must be [N, K] and [K], not {shapes}")
    level = bias(global_logits)
    if not level.isfinite():
        return torch.zeros_like(client_logits, dtype=torch.float64)
    raised = (client_logits.double() - level).clamp_min(0.0)
    return torch.where(nonfinite_clients(client_logits)[:, None], 0.0, raised)


def shares(Q: Tensor) -> Tensor:
    """Return R `[N, K]`, each client's share of the evidence for each class.

    Columns sum to 1, or to 0 without evidence.

    >>> shares(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    tensor([[0.2500, 0.0000],
            [0.7500, 0.0000]], dtype=torch.float64)
    """
    Q = as_evidence(Q).double()
    return Q / (Q.sum(dim=0) + _EPSILON)


def scores(Q: Tensor) -> Tensor:
    """Return c̄ `[N]`, the mean share over classes, normalised to sum 1; zeros without any evidence.

    >>> scores(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
    tensor([0.1250, 0.8750], dtype=torch.float64)
    """
    mean_share = shares(Q).mean(dim=1)
    total = mean_share.sum()
    return mean_share / total if total > 0 else torch.zeros_like(mean_share)
