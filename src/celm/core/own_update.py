"""A client's own update δ of a weight tensor: what neither scaling its rows nor earlier global updates explain.

    v, w    the tensor that a client received, and the one that it returned
    g_k     changes of the global model's tensor since earlier rounds
    ⊥       removes from every row its component along the same row of v
    δ       = (w - v)⊥ without its component in the span of the g_k⊥

Clients that received the same tensor are computed in one batch. The span is measured in float64, updates in the
precision of the models. A batch whose float32 numbers overflow is computed again in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from celm.core.calibration import MIN_DIVISOR

_ModelState = Mapping[str, Tensor]

_MAX_KEPT_BYTES = 2**29
"""Projections beyond this size are computed again for each batch of clients."""
_RANK_TOLERANCE = 1e-7
"""Singular values of the changes, each of norm 1, count as 0 below this value."""


class OwnUpdates:
    """Computes δ of tensors.

    Most clients receive the same model, so the projection of a tensor is kept for the next batch of clients.
    """

    def __init__(self, global_history: Sequence[_ModelState]) -> None:
        self._global_history = global_history
        self._kept: dict[str, tuple[Tensor, _Projection]] = {}
        self._kept_bytes = 0

    def __call__(self, name: str, delivered: Sequence[Tensor], trained: Sequence[Tensor]) -> Tensor:
        """Return δ of one tensor of a batch of clients, `[B, *shape]`."""
        if all(tensor is delivered[0] for tensor in delivered):
            return self._projection(name, delivered[0])(torch.stack(list(trained)))
        pairs = zip(delivered, trained, strict=True)
        return torch.cat([self._projection(name, v)(w[None]) for v, w in pairs])

    def _projection(self, name: str, delivered: Tensor) -> _Projection:
        kept_for, projection = self._kept.get(name, (None, None))
        if projection is None or kept_for is not delivered:
            projection = _Projection.of(delivered, _global_updates(name, self._global_history))
            if name in self._kept or self._kept_bytes + projection.nbytes <= _MAX_KEPT_BYTES:
                self._kept_bytes += 0 if name in self._kept else projection.nbytes
                self._kept[name] = delivered, projection
        return projection


@dataclass(frozen=True)
class _Projection:
    """The projection from clients' tensors to δ, for one delivered tensor."""

    delivered: Tensor
    unit_rows: Tensor
    """Rows of the delivered tensor, of norm 1."""
    basis: Tensor | None
    """Orthonormal rows that span the changes of the global model, each orthogonal to the rows above."""

    @classmethod
    def of(cls, delivered: Tensor, global_updates: Sequence[Tensor]) -> _Projection:
        rows = delivered.cpu().flatten(1).double()
        unit_rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(MIN_DIVISOR)
        precision = torch.float64 if delivered.dtype == torch.float64 else torch.float32
        basis = None
        if global_updates:
            changes = torch.stack([change.flatten(1) for change in global_updates])
            basis = _orthonormal_basis(_remove_rows(changes, unit_rows).flatten(1))
        return cls(delivered.cpu(), unit_rows.to(precision), None if basis is None else basis.to(precision))

    @property
    def nbytes(self) -> int:
        return self.unit_rows.nbytes + (0 if self.basis is None else self.basis.nbytes)

    def __call__(self, trained: Tensor) -> Tensor:
        update = self._apply(trained, self.unit_rows.dtype)
        # A sum is finite only if all terms are, and takes a fiftieth of the time of isfinite().all().
        return update if bool(update.sum().isfinite()) else self._apply(trained, torch.float64)

    def _apply(self, trained: Tensor, precision: torch.dtype) -> Tensor:
        update = trained.cpu().to(precision) - self.delivered.to(precision)
        update = _remove_rows(update.flatten(2), self.unit_rows.to(precision)).flatten(1)
        if self.basis is not None and len(self.basis):
            basis = self.basis.to(precision)
            update = update.addmm_(update @ basis.T, basis, alpha=-1)
        return update.view(trained.shape)


def own_update(delivered: Tensor, trained: Tensor, global_updates: Sequence[Tensor]) -> Tensor:
    """Return δ of one tensor of one client.

    >>> own_update(torch.eye(3), torch.tensor([[9., 5, 6], [0, 1, 0], [0, 0, 1]]), [torch.ones(3, 3)]).round(decimals=1)
    tensor([[ 0.0000,  3.2000,  4.2000],
            [-1.8000,  0.0000, -1.8000],
            [-1.8000, -1.8000,  0.0000]])
    """
    return _Projection.of(delivered, [change.double() for change in global_updates])(trained[None])[0]


def _global_updates(name: str, global_history: Sequence[_ModelState]) -> list[Tensor]:
    """Return the g_k of one tensor."""
    if not global_history:
        return []
    now = global_history[-1][name].cpu().double()
    return [now - model[name].cpu().double() for model in global_history[:-1]]


def _remove_rows(matrices: Tensor, unit_rows: Tensor) -> Tensor:
    """Apply ⊥ to matrices `[B, rows, columns]` in place."""
    return matrices.addcmul_(torch.linalg.vecdot(matrices, unit_rows)[..., None], unit_rows, value=-1)


def _orthonormal_basis(rows: Tensor) -> Tensor:
    """Return orthonormal rows with the same span; fewer if rows are linearly dependent.

    >>> tuple(_orthonormal_basis(torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]], dtype=torch.float64)).shape)
    (1, 3)
    """
    rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(MIN_DIVISOR)
    squares, combinations = torch.linalg.eigh(rows @ rows.T)
    independent = squares > _RANK_TOLERANCE**2
    basis: Tensor = (combinations[:, independent] / squares[independent].sqrt()).T @ rows
    return basis
