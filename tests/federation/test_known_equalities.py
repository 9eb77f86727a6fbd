"""Whole federations whose outcome is known without running `celm`: closed forms, and methods that must coincide.

Every equality has a counterpart under which it must fail, so that a setting without effect does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import celm
from celm.data.sources.digits import Digits

BASE: dict[str, dict[str, Any]] = {
    "dataset": {"name": "digits"},
    "split": {"name": "pls", "clients": 4},
    "model": {"name": "mlp", "widths": [16]},
    "train": {"batch": 16, "lr": 0.05},
    "rule": {"name": "fedavg"},
    "probe": {"steps": 20},
    "run": {"rounds": 3, "workers": 0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., celm.Run]:
    """Run the base experiment with some tables extended; equal experiments are run once."""
    finished: dict[str, celm.Run] = {}

    def run_experiment(**tables: Any) -> celm.Run:
        settings = dict(BASE)
        for name, table in tables.items():
            # A table that names a component replaces the table of another one.
            extends = isinstance(table, dict) and "name" not in table
            settings[name] = {**BASE.get(name, {}), **table} if extends else table
        key = repr(sorted(settings.items()))
        if key not in finished:
            experiment = celm.Experiment.parse(settings)
            finished[key] = celm.run(experiment, out=tmp_path_factory.mktemp("runs") / "run")
        return finished[key]

    return run_experiment


def final_model(run: celm.Run) -> dict[str, Tensor]:
    return load_file(run.folder / "model.safetensors")


def largest_difference(one: celm.Run, other: celm.Run) -> float:
    """Return the largest difference between two final models, over all values."""
    first, second = final_model(one), final_model(other)
    assert set(first) == set(second)
    return max(float((first[name] - second[name]).abs().max()) for name in first)


SAME, DIFFERENT = 1e-5, 1e-3
"""Rounding over three rounds stays below the one; a method that has an effect exceeds the other."""


# --- Averaging ------------------------------------------------------------------------------------------------


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    data = Digits().load()
    inputs = data.train_inputs.flatten(1).double().numpy()
    return np.hstack([inputs, np.ones((len(inputs), 1))]), np.eye(10)[data.train_labels.numpy()]


def descend(weights: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """Train softmax regression on all training data by full-batch gradient descent, in float64."""
    inputs, targets = digits()
    for _ in range(steps):
        logits = inputs @ weights.T
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = odds / odds.sum(axis=1, keepdims=True)
        weights = weights - lr * (probabilities - targets).T @ inputs / len(inputs)
    return weights


def as_matrix(model: Mapping[str, Tensor]) -> np.ndarray:
    return torch.cat([model["head.weight"], model["head.bias"][:, None]], dim=1).double().numpy()


@pytest.mark.parametrize("rule", ["fedavg", "fednova"])
@pytest.mark.parametrize(
    "split", [{"name": "iid", "clients": 3}, {"name": "dirichlet", "clients": 5, "alpha": 0.3}], ids=str
)
def test_one_full_batch_step_a_round_is_central_gradient_descent(rule, split, run):
    """Size-weighted means of single full-batch steps are a step on the union of the data, however it is split."""
    linear = {
        "split": split,
        "model": {"name": "mlp", "widths": []},
        "rule": {"name": rule, "by_size": True},
    }
    untrained = run(**linear, train={"batch": 2000, "lr": 1e-30}, run={"rounds": 1})
    trained = run(**linear, train={"batch": 2000, "lr": 0.5}, run={"rounds": 10})
    start = as_matrix(final_model(untrained))
    expected = descend(start, lr=0.5, steps=10)
    assert np.abs(expected - start).max() > 0.1
    np.testing.assert_allclose(as_matrix(final_model(trained)), expected, atol=1e-5)


def test_fednova_is_fedavg_where_all_take_equally_many_steps_and_only_there(run):
    equal = {"name": "pls", "clients": 4}
    sizes = [sum(counts) for counts in run(split=equal).metrics["counts"].values()]
    assert len({-(-size // 16) for size in sizes}) == 1
    assert largest_difference(run(split=equal), run(split=equal, rule={"name": "fednova"})) < SAME
    unequal = {"name": "dirichlet", "clients": 4, "alpha": 0.3}
    sizes = [sum(counts) for counts in run(split=unequal).metrics["counts"].values()]
    assert len({-(-size // 16) for size in sizes}) > 1
    assert largest_difference(run(split=unequal), run(split=unequal, rule={"name": "fednova"})) > DIFFERENT


@pytest.mark.parametrize(
    "rule", ["celm", "fednova", "shapfed", "fedce", "leave_one_out", "shapley", "gtg_shapley", "tmc_shapley"]
)
def test_in_a_federation_of_one_every_rule_is_fedavg(rule, run):
    alone = {"split": {"name": "iid", "clients": 1}, "run": {"validation": 0.1, "local_heads": 0}}
    found = run(**alone, rule={"name": rule})
    assert found.weights == {"client-0": 1}
    assert largest_difference(run(**alone), found) < SAME
    # With four clients, all but FedNova (equal steps) give other weights, and so another model.
    several = {"run": {"validation": 0.1, "local_heads": 0}}
    if rule != "fednova":
        assert largest_difference(run(**several), run(**several, rule={"name": rule})) > DIFFERENT


def test_a_client_that_stands_alone_trains_as_in_a_federation_of_its_own(run):
    together = run(rule={"name": "standalone"})
    alone = run(run={"clients": ["client-2"]})
    assert together.metrics["client_accuracy"]["client-2"] == alone.accuracy
    assert len(set(together.metrics["client_accuracy"].values())) == 4


# --- Objectives -----------------------------------------------------------------------------------------------

WITHOUT_STRENGTH: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0, "projection": 0},
    "fedrs": {"alpha": 1.0},
    "feduv": {"variance": 0.0, "uniformity": 0.0},
    "fedsam": {"rho": 0.0},
    "fedsol": {"rho": 0.0},
    "fedaws": {"steps": 0},
}
WITH_STRENGTH = {name: {} for name in WITHOUT_STRENGTH} | {
    "fedprox": {"mu": 1.0},
    "moon": {"mu": 5.0, "projection": 0},
}


@pytest.mark.parametrize("name", WITHOUT_STRENGTH)
def test_an_objective_of_strength_zero_is_plain_cross_entropy(name, run):
    plain = run()
    assert largest_difference(plain, run(objective={"name": name, **WITHOUT_STRENGTH[name]})) < SAME
    assert largest_difference(plain, run(objective={"name": name, **WITH_STRENGTH[name]})) > DIFFERENT


def test_scaffold_corrects_nothing_in_the_first_round(run):
    scaffold = {"name": "scaffold"}
    assert largest_difference(run(run={"rounds": 1}), run(run={"rounds": 1}, objective=scaffold)) < SAME
    assert largest_difference(run(), run(objective=scaffold)) > DIFFERENT


def test_feddyn_is_fedprox_in_the_first_round(run):
    dyn, prox = {"name": "feddyn", "alpha": 1.0, "clip": 0.0}, {"name": "fedprox", "mu": 1.0}
    first = {"run": {"rounds": 1}}
    assert largest_difference(run(**first, objective=dyn), run(**first, objective=prox)) < SAME
    assert largest_difference(run(objective=dyn), run(objective=prox)) > DIFFERENT


def test_the_head_of_fedgela_is_a_simplex_after_all_rounds(run):
    found = run(objective={"name": "fedgela"}, train={"lr": 0.001})
    head = final_model(found)["head.classifier.weight"].double().numpy()
    expected = np.full((10, 10), -1 / 9)
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(head @ head.T, expected, atol=1e-6)


# --- Contribution ---------------------------------------------------------------------------------------------


def test_weights_of_celm_follow_from_its_recorded_evidence(run):
    """Eq. 10-14 in NumPy: shares of each class, their mean, smoothing by beta, then frozen."""
    found = run(rule={"name": "celm", "warmup": 3, "beta": 0.3}, run={"rounds": 5})
    expected = np.full(4, 1 / 4)
    for record in found.rounds:
        if record["round"] <= 3:
            evidence = np.array(list(record["evidence"].values()))
            totals = evidence.sum(axis=0)
            shares = evidence[:, totals > 0] / totals[totals > 0]
            scores = shares.sum(axis=1) / shares.sum()
            assert list(record["scores"].values()) == pytest.approx(scores, abs=1e-6)
            assert scores.max() - scores.min() > 0.01
            expected = 0.3 * expected + 0.7 * scores
        assert list(record["client_weights"].values()) == pytest.approx(expected, abs=1e-6)
    assert list(found.weights.values()) == pytest.approx(expected, abs=1e-6)


def test_sampled_shapley_values_agree_with_exact_ones_on_the_same_trajectory(run):
    """With no truncation and many orders of four clients, both samplers estimate what `shapley` enumerates."""
    observers = [
        {"name": "shapley"},
        {"name": "tmc_shapley", "precision": 0.0, "tolerance": 0.0, "permutations": 400},
        {"name": "gtg_shapley", "convergence": 0.0, "tolerance": 0.0, "minimum": 400, "permutations": 400},
    ]
    found = run(observe=observers, run={"validation": 0.2}).metrics["observed"]
    exact = found["shapley"]
    assert max(exact.values()) - min(exact.values()) > 0.05
    for name in ("tmc_shapley", "gtg_shapley"):
        assert found[name] == pytest.approx(exact, abs=0.03), name
