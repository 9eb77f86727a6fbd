"""Derivatives of the cross-entropy against its closed form on softmax regression, and against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from celm.core.loss_derivatives import loss_derivatives

X = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 1, 0, 0, 2])


def regression() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 3, bias=False).double()


def closed_form(weight: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return loss, gradient `[9]` and Hessian `[9, 9]` of softmax regression by their formulas."""
    p = (X @ weight.T).softmax(1)
    loss = -p[torch.arange(len(X)), Y].log().mean()
    gradient = (p - nn.functional.one_hot(Y, 3)).T @ X / len(X)
    hessian = sum(
        torch.kron(torch.diag(p[j]) - torch.outer(p[j], p[j]), torch.outer(X[j], X[j])) for j in range(len(X))
    ) / len(X)
    return float(loss), gradient.flatten(), hessian


@pytest.mark.parametrize("batch_size", [2, 100])
def test_softmax_regression(batch_size: int) -> None:
    module = regression()
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    direction = torch.randn(3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = loss_derivatives(module, {"weight": weight}, X, Y, {"weight": direction}, batch_size)
    loss, gradient, hessian = closed_form(weight)
    assert found.loss == pytest.approx(loss)
    torch.testing.assert_close(found.gradient["weight"].flatten(), gradient)
    torch.testing.assert_close(found.curvature["weight"].flatten(), hessian @ direction.flatten())


class Tied(nn.Module):
    """A network with a tied weight, a frozen one, BatchNorm statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.again(self.drop(self.norm(self.first(x).tanh() * self.frozen)))
        return logits


def test_networks_with_tied_and_frozen_parameters_and_buffers() -> None:
    torch.manual_seed(4)
    module = Tied().double()
    module.norm.running_mean.fill_(0.3)
    model = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    names = [name for name, _ in module.named_parameters()]
    direction = {name: torch.randn_like(model[name]) for name in names}
    found = loss_derivatives(module, model, X, Y, direction)
    assert set(found.gradient) == set(names)
    assert "again.weight" not in found.gradient

    def moved(by: float) -> dict[str, Tensor]:
        state = {
            name: model[name] + by * direction[name] if name in direction else model[name] for name in model
        }
        return {**state, "again.weight": state["first.weight"]}

    ahead, behind = (loss_derivatives(module, moved(by), X, Y) for by in (1e-5, -1e-5))
    slope = sum(float((found.gradient[name] * direction[name]).sum()) for name in names)
    assert slope == pytest.approx((ahead.loss - behind.loss) / 2e-5, rel=1e-6)
    for name in names:
        expected = (ahead.gradient[name] - behind.gradient[name]) / 2e-5
        torch.testing.assert_close(found.curvature[name], expected, rtol=1e-5, atol=1e-7)
    assert not ahead.curvature
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in model.items())


def test_a_long_direction_does_not_overflow() -> None:
    module = regression().float()
    model = {"weight": module.weight.detach()}
    unit = {"weight": torch.ones(3, 3, dtype=torch.float64)}
    long = {"weight": torch.full((3, 3), 1e100, dtype=torch.float64)}
    short, far = (loss_derivatives(module, model, X.float(), Y, direction) for direction in (unit, long))
    torch.testing.assert_close(far.curvature["weight"], short.curvature["weight"] * 1e100)
