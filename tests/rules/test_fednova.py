"""FedNova with different steps, and its equality with FedAvg for equal steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from celm.rules.fedavg import FedAvg
from celm.rules.fednova import FedNova, FedNovaState, effective_steps
from celm.rules.messages import RoundData
from celm.rules.rule import WeightingResult
from support import rule_rounds

FACTS = rule_rounds.facts_of(rule_rounds.module_of(w=2), clients="abc")
START = {"w": torch.tensor([1.0, -1.0]), "mean": torch.tensor([7.0]), "seen": torch.tensor(0)}


def model(*w: float, mean: float = 0.0, seen: int = 0) -> dict[str, Tensor]:
    return {
        "w": torch.tensor(w, dtype=torch.float32),
        "mean": torch.tensor([float(mean)]),
        "seen": torch.tensor(seen),
    }


def a_round(*, number: int = 1, **clients: tuple[dict[str, Tensor], int, int]) -> RoundData:
    """Build a round from client names and their model, steps and size."""
    models, steps, sizes = ({name: clients[name][i] for name in sorted(clients)} for i in range(3))
    return rule_rounds.a_round(START, models, number, steps=steps, sizes=sizes)


def run(
    rule: FedNova, round: RoundData, state: FedNovaState | None = None
) -> tuple[WeightingResult[FedNovaState], dict[str, Tensor]]:
    state = state or rule.init(FACTS)
    weighting = rule.compute_weights(state, FACTS, round)
    return weighting, rule.aggregate(state, round, weighting)


def test_updates_count_by_step() -> None:
    round = a_round(a=(model(3, -1, mean=2), 2, 9), b=(model(1, 3, mean=4), 4, 1))
    weighting, merged = run(FedNova(), round)
    # τ = (2 + 4) / 2 = 3; w = [1, -1] + 3 ([2, 0] / 2 + [0, 4] / 4) / 2
    assert merged["w"].tolist() == pytest.approx([2.5, 0.5])
    assert merged["mean"].tolist() == [3.0]  # a buffer is no direction: the plain mean
    assert weighting.aggregation_weights == {"a": 0.5, "b": 0.5}
    assert weighting.diagnostics["effective"] == 3


def test_momentum_accumulates_as_the_optimizer_does() -> None:
    for momentum in (0.0, 0.5, 0.9):
        velocity = total = 0.0
        for steps in range(1, 8):
            velocity = momentum * velocity + 1
            total += velocity
            assert effective_steps(steps, momentum) == pytest.approx(total)
    round = a_round(a=(model(3, -1), 1, 1), b=(model(1, 3), 2, 1))
    # a = 1 and 2.5, τ = 1.75
    assert run(FedNova(momentum=0.5), round)[1]["w"].tolist() == pytest.approx([1 + 1.75, -1 + 1.75 * 4 / 5])


def test_equal_steps_are_fedavg() -> None:
    clients = {"a": model(3, 5, mean=1, seen=3), "b": model(-2, 0.5, mean=6), "c": model(9, 9)}
    for by_size in (False, True):
        round = a_round(**{name: (sent, 7, 3 + i) for i, (name, sent) in enumerate(clients.items())})
        plain = FedAvg(by_size=by_size)
        weighting = plain.compute_weights(plain.init(FACTS), FACTS, round)
        expected = plain.aggregate(plain.init(FACTS), round, weighting)
        for momentum in (0.0, 0.9):
            result, merged = run(FedNova(momentum=momentum, by_size=by_size), round)
            assert result.aggregation_weights == weighting.aggregation_weights
            for name in START:
                torch.testing.assert_close(merged[name], expected[name])


def test_one_epoch_by_size_is_the_uniform_mean_stretched() -> None:
    sizes = {"a": 10, "b": 30, "c": 60}
    changes = {"a": [1.0, 2.0], "b": [-3.0, 1.0], "c": [0.5, 5.0]}
    round = a_round(
        **{n: (model(1 + changes[n][0], -1 + changes[n][1]), sizes[n] // 10, sizes[n]) for n in sizes}
    )
    _, merged = run(FedNova(by_size=True), round)
    stretch = 3 * sum((size / 100) ** 2 for size in sizes.values())
    mean = [sum(change[i] for change in changes.values()) / 3 for i in range(2)]
    assert merged["w"].tolist() == pytest.approx([1 + stretch * mean[0], -1 + stretch * mean[1]])


def test_a_client_without_steps_has_no_weight() -> None:
    idle = a_round(a=(model(100, 100, mean=50), 0, 9), b=(model(1, 3, mean=4), 4, 1))
    weighting, merged = run(FedNova(), idle)
    assert weighting.aggregation_weights == {"a": 0.0, "b": 1.0}
    assert merged["w"].tolist() == pytest.approx([1, 3])
    assert merged["mean"].tolist() == [4.0]
    weighting, merged = run(FedNova(), a_round(a=(model(5, 5), 0, 1), b=(model(6, 6), 0, 1)))
    assert weighting.aggregation_weights == {"a": 0.5, "b": 0.5}
    assert merged is START


def test_changes_are_relative_to_the_received_model() -> None:
    round = rule_rounds.a_round(START, {"a": model(12, 10)}, steps={"a": 2}, sent={"a": model(10, 10)})
    assert run(FedNova(), round)[1]["w"].tolist() == pytest.approx([3, -1])


def test_absent_clients_keep_their_weight_and_newcomers_get_one() -> None:
    rule = FedNova(by_size=True)
    first, _ = run(rule, a_round(b=(model(0, 0), 1, 6), a=(model(0, 0), 1, 2)))
    second, _ = run(rule, a_round(number=2, c=(model(0, 0), 1, 5), b=(model(0, 0), 1, 3)), first.state)
    assert second.aggregation_weights == pytest.approx({"b": 3 / 8, "c": 5 / 8})
    assert second.client_weights == pytest.approx({"a": 0.2, "b": 0.3, "c": 0.5})
