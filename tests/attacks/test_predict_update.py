"""Predicted updates against linear laws that a client can see, and the memory of received models."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import celm
from celm.attacks.attack import AttackContext
from celm.attacks.predict_update import PredictUpdate, predict_next
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round
from celm.models.state_dict import StateDict
from celm.models.state_ops import cosine, difference, flatten
from celm.rules.rule import ServerContext

FACTS = ServerContext(("client-0",), 2, (3,), 10, 0, nn.Linear(3, 2), ())


def models_of(points: np.ndarray) -> list[StateDict]:
    """Divide each point among two tensors; the counter is not a direction."""
    return [
        {"a": torch.tensor(p[:2]), "b": torch.tensor(p[2:]).view(1, -1), "n": torch.tensor(t)}
        for t, p in enumerate(points)
    ]


def upload(models: list[StateDict], **settings: float) -> StateDict:
    *earlier, received = models
    previous = earlier[-1] if earlier else None
    context = AttackContext(
        9, received, received, previous, torch.Generator(), FACTS, earlier_models=tuple(earlier)
    )
    return PredictUpdate(**settings).poison(context)


def descent(steps: int, dimensions: int = 4) -> np.ndarray:
    """Gradient descent on a quadratic with known Hessian."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(dimensions, dimensions))
    hessian = root @ root.T / dimensions
    points = [rng.normal(size=dimensions)]
    for _ in range(steps):
        points.append(points[-1] - 0.2 * hessian @ points[-1])
    return np.array(points)


def test_gradient_descent_on_a_quadratic_is_predicted_exactly() -> None:
    points = descent(7)
    sent = upload(models_of(points[:-1]))
    # The law is known after 4 updates in 4 dimensions; the prediction then has the length of the last update.
    step, last = points[7] - points[6], points[6] - points[5]
    expected = points[6] + step * np.linalg.norm(last) / np.linalg.norm(step)
    torch.testing.assert_close(
        flatten({name: sent[name] for name in "ab"}), torch.tensor(expected), rtol=1e-6, atol=1e-6
    )
    assert sent["n"].item() == 6


def test_by_hand_with_two_updates() -> None:
    """g_1 = (2, 0, 0), g_2 = (1, 1, 0): a = 1/2, so ĝ = g_2 + (g_2 - g_1) / 2 = (1/2, 3/2, 0)."""
    predicted = predict_next(models_of(np.array([[2.0, 0, 0], [1.0, 1, 0]])))
    assert predicted["a"].tolist() == pytest.approx([0.5, 1.5])
    assert predicted["b"].tolist() == [[0.0]]


def test_with_one_update_it_replays_and_with_equal_ones_too() -> None:
    points = np.array([[0.0, 0, 0], [1, 2, 2], [2, 4, 4], [3, 6, 6]])
    for seen in (2, 3, 4):
        sent = upload(models_of(points[:seen]), strength=2.0)
        expected = points[seen - 1] + 2 * (points[1] - points[0])
        assert flatten({name: sent[name] for name in "ab"}).tolist() == pytest.approx(expected.tolist())


def test_a_federation_that_stands_still_gets_its_model_back() -> None:
    models = models_of(np.ones((3, 3)))
    assert upload(models) is models[-1]


def played(memory: int, rounds: int = 6) -> tuple[list[StateDict], list[int]]:
    """Return the global models, and after each round the number of models that the attacker remembers."""
    experiment = Experiment.parse(
        {
            "dataset": {"name": "digits", "limit": 40},
            "split": {"name": "iid", "clients": 4},
            "model": {"name": "mlp", "widths": [6]},
            "rule": {"name": "fedavg"},
            "run": {"rounds": rounds, "workers": 0},
            "attack": {"name": "predict_update", "client": "client-1", "memory": memory},
        }
    )
    federation = build_federation(resolve_defaults(experiment))
    state, engine = initial_state(federation), InProcessEngine(federation.trainer)
    models, remembered = [state.model], []
    for _ in range(rounds):
        state = run_round(federation, state, engine).state
        models.append(state.model)
        remembered.append(len(state.clients.attackers["client-1"].start_models))
    return models, remembered


def test_it_remembers_as_many_models_as_it_may() -> None:
    torch.set_num_threads(1)
    assert played(memory=3)[1] == [1, 2, 3, 3, 3, 3]
    assert played(memory=1)[1] == [1] * 6


def test_in_a_federation_it_foresees_the_next_update() -> None:
    torch.set_num_threads(1)
    models = played(memory=10, rounds=12)[0]
    steps = [difference(after, before) for before, after in pairwise(models)]
    for t in range(2, len(steps)):
        assert cosine(flatten(predict_next(steps[:t])), flatten(steps[t])) > 0.9


def test_a_killed_run_is_resumed_to_the_bit(tmp_path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, *_: object) -> None:
        if done == 4:
            raise Stop

    experiment = Experiment.parse(
        {
            "dataset": {"name": "digits", "limit": 40},
            "split": {"name": "iid", "clients": 3},
            "model": {"name": "mlp", "widths": [6]},
            "rule": {"name": "fedavg"},
            "run": {"rounds": 6, "workers": 0},
            "attack": {"name": "predict_update", "client": "client-1"},
        }
    )
    complete = celm.run(experiment, out=tmp_path / "complete")
    with pytest.raises(Stop):
        celm.run(experiment, out=tmp_path / "killed", watch=stop)
    celm.resume(tmp_path / "killed")
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (complete.folder / name).read_bytes()
