"""In-run values against exact Shapley values, by all orders, of the games that they expand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.core.loss_derivatives import LossDerivatives, loss_derivatives
from celm.models.state_dict import StateDict
from celm.rules.coalitions import CoalitionState, Game
from celm.rules.in_run import InRun
from celm.rules.messages import RoundData, Validation
from support.games import by_all_orders, game_of
from support.rule_rounds import a_round, facts_of

NAMES = ["a", "b", "c", "d"]
X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(9) % 3


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


MODULE = network()
START = {name: tensor.detach().clone() for name, tensor in MODULE.state_dict().items()}


def moves(length: float) -> dict[str, StateDict]:
    draw = torch.Generator().manual_seed(2)
    return {
        client: {
            name: length * torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
            for name, tensor in START.items()
        }
        for client in NAMES
    }


def loss_at(model: StateDict) -> float:
    with torch.no_grad():
        logits = torch.func.functional_call(MODULE, model, (X,))
        return float(nn.functional.cross_entropy(logits, Y))


def count(models: object) -> list[Tensor]:
    raise AssertionError("no coalition is evaluated")


def differentiate(model: StateDict, direction: StateDict | None) -> LossDerivatives:
    return loss_derivatives(MODULE, model, X, Y, direction)


def round_of(changes: dict[str, StateDict]) -> RoundData:
    models = {
        client: {name: START[name] + change[name] for name in START} for client, change in changes.items()
    }
    return a_round(START, models, validate=Validation(count, differentiate))


def values_of(rule: InRun, changes: dict[str, StateDict]) -> dict[str, float]:
    result = rule.compute_weights(CoalitionState(), facts_of(MODULE), round_of(changes))
    return dict(result.diagnostics["values"])


def loss_game(changes: dict[str, StateDict]) -> Game:
    """v(S) = L(w_g) - L(w_g + Σ_{i∈S} Δ_i / N), evaluated for every coalition."""

    def worth(members: frozenset[int]) -> float:
        model = {
            name: START[name] + sum(changes[NAMES[i]][name] for i in members) / len(NAMES) for name in START
        }
        return loss_at(START) - loss_at(model)

    return game_of(len(NAMES), worth)


def errors(order: int, length: float) -> float:
    changes = moves(length)
    found, exact = values_of(InRun(order=order), changes), by_all_orders(loss_game(changes))
    return max(abs(found[name] - exact[i]) for i, name in enumerate(NAMES))


@pytest.mark.parametrize("order", [1, 2])
def test_the_distance_to_exact_shapley_values_falls_with_the_power_of_the_order(order: int) -> None:
    """Halving the steps divides the remainder of a polynomial of order k by 2^(k+1)."""
    far, near = errors(order, 0.02), errors(order, 0.01)
    assert far / near == pytest.approx(2 ** (order + 1), rel=0.1)
    assert near < 1e-3


def test_the_second_order_is_the_shapley_value_of_the_quadratic_game() -> None:
    changes = moves(0.7)
    vectors = (
        torch.stack([torch.cat([step.flatten() for step in changes[name].values()]) for name in NAMES]) / 4
    )
    parameters = torch.cat([tensor.flatten() for tensor in START.values()])

    def flat_loss(flat: Tensor) -> Tensor:
        sizes = [tensor.numel() for tensor in START.values()]
        parts = zip(START.items(), flat.split(sizes), strict=True)
        model = {name: part.view_as(tensor) for (name, tensor), part in parts}
        return nn.functional.cross_entropy(torch.func.functional_call(MODULE, model, (X,)), Y)

    gradient = torch.autograd.functional.jacobian(flat_loss, parameters)
    hessian = torch.autograd.functional.hessian(flat_loss, parameters)

    def worth(members: frozenset[int]) -> float:
        step = vectors[sorted(members)].sum(0)
        return float(-(gradient @ step) - step @ hessian @ step / 2)

    found = values_of(InRun(order=2), changes)
    assert [found[name] for name in NAMES] == pytest.approx(by_all_orders(game_of(4, worth)))


def test_values_accumulate_with_decay_and_weights_are_their_positive_parts() -> None:
    rule, facts = InRun(decay=0.5), facts_of(MODULE)
    slope = differentiate(START, None).gradient
    downhill = {name: -tensor for name, tensor in slope.items()}
    changes = {"a": downhill, "b": {name: 3 * step for name, step in downhill.items()}, "c": dict(slope)}
    squared = float(sum(tensor.square().sum() for tensor in slope.values()))
    first = rule.compute_weights(CoalitionState(), facts, round_of(changes))
    assert first.diagnostics["values"] == pytest.approx({"a": squared / 3, "b": squared, "c": -squared / 3})
    assert first.diagnostics["validation_loss"] == pytest.approx(loss_at(START))
    assert first.aggregation_weights == pytest.approx({"a": 0.25, "b": 0.75, "c": 0})
    second = rule.compute_weights(first.state, facts, round_of({"a": changes["a"]}))
    # a: 1/2 · 1/3 + 1; b is absent and keeps 1.
    assert second.client_weights == pytest.approx({"a": 7 / 13, "b": 6 / 13, "c": 0})


def test_counts_alone_are_not_enough() -> None:
    round = a_round(START, {"a": START}, validate=lambda models: [])
    with pytest.raises(CelmError, match="validation data"):
        InRun().compute_weights(CoalitionState(), facts_of(MODULE), round)
