"""A run as a game, beside runs of the same clients by themselves."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import celm
from celm.base.errors import CelmError
from celm.rules.coalitions import Game
from celm.rules.shapley import shapley_values
from celm.study.ground_truth import truth_from_worth
from support.games import by_all_orders

CLIENTS = ["client-0", "client-1", "client-2"]


def tables(**more: Any) -> dict[str, Any]:
    return {
        "dataset": {"name": "digits", "limit": 30},
        "split": {"name": "pls", "clients": 3},
        "model": {"name": "mlp", "widths": [6]},
        "train": {"batch": 8},
        "probe": {"steps": 2},
        "run": {"rounds": 3, "workers": 0},
        **more,
    }


def run_of(path: Path, **more: Any) -> celm.Run:
    return celm.run(celm.Experiment.parse(tables(**more)), out=path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> celm.Run:
    return run_of(
        tmp_path_factory.mktemp("game") / "run", rule={"name": "celm"}, observe=[{"name": "shapfed"}]
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, ...], float]:
    """Return the accuracy of every coalition, from runs of plain averaging that are started by hand."""
    folder = tmp_path_factory.mktemp("alone")
    accuracies = {(0, 0, 0): 0.0}
    for members in list(product((0, 1), repeat=3))[1:]:
        names = [name for name, present in zip(CLIENTS, members, strict=True) if present]
        settings = {"rounds": 3, "workers": 0, "clients": names}
        coalition = run_of(folder / "".join(map(str, members)), rule={"name": "fedavg"}, run=settings)
        accuracies[members] = coalition.accuracy
    return accuracies


def test_values_are_those_of_runs_by_themselves(run: celm.Run, alone: dict[tuple[int, ...], float]) -> None:
    game = celm.as_game(run)
    coalitions = np.array(list(alone))
    assert game.clients == tuple(CLIENTS)
    assert game(coalitions).tolist() == list(alone.values())
    assert game(coalitions.astype(bool)[::-1]).tolist() == list(alone.values())[::-1]
    assert game(coalitions.reshape(2, 4, 3)).shape == (2, 4)
    assert game.value("client-2", "client-0") == alone[1, 0, 1]
    assert game.value() == 0
    assert game.evaluations == 8
    assert len(set(alone.values())) > 4


def test_shapley_values_are_those_of_a_study_with_ground_truth(
    run: celm.Run, alone: dict[tuple[int, ...], float]
) -> None:
    game = celm.as_game(run)
    as_bits = Game(3, lambda masks: game([[mask >> i & 1 for i in range(3)] for mask in masks]).tolist())
    worth = {sum(bit << i for i, bit in enumerate(key)): value for key, value in alone.items()}
    truth = truth_from_worth("row", 42, "accuracy", CLIENTS, worth)
    assert shapley_values(as_bits) == pytest.approx(list(truth.shapley.values()))
    assert sum(by_all_orders(as_bits)) == pytest.approx(alone[1, 1, 1])


def test_shapiq_takes_it(run: celm.Run) -> None:
    shapiq = pytest.importorskip("shapiq")
    game = celm.as_game(run)
    exact = shapiq.ExactComputer(game, n_players=game.n_players)
    as_bits = Game(3, lambda masks: game([[mask >> i & 1 for i in range(3)] for mask in masks]).tolist())
    assert exact("SV").get_n_order_values(1).tolist() == pytest.approx(by_all_orders(as_bits))


def test_runs_of_coalitions_are_kept_in_a_folder_and_read_again(run: celm.Run, tmp_path: Path) -> None:
    first = celm.as_game(run, out=tmp_path).value("client-0", "client-2")
    model = tmp_path / "clients-0+2" / "model.safetensors"
    written = model.stat().st_mtime_ns
    assert celm.as_game(run, out=tmp_path).value("client-0", "client-2") == first
    assert celm.as_game(run, "balanced_accuracy", tmp_path).value("client-0", "client-2") != 0
    assert model.stat().st_mtime_ns == written
    other = run_of(tmp_path / "other", rule={"name": "fedavg"}, run={"rounds": 1, "workers": 0})
    with pytest.raises(CelmError, match=r"clients-0\+2 contains a run with other settings"):
        celm.as_game(other, out=tmp_path).value("client-0", "client-2")


def test_an_attack_goes_with_its_client(tmp_path: Path) -> None:
    attack = {"name": "random_weights", "client": "client-1", "strength": 100.0}
    attacked = celm.as_game(run_of(tmp_path / "attacked", rule={"name": "fedavg"}, attack=attack))
    honest = celm.as_game(run_of(tmp_path / "honest", rule={"name": "fedavg"}))
    assert attacked.value("client-0", "client-2") == honest.value("client-0", "client-2")
    assert attacked.value("client-1", "client-2") < honest.value("client-1", "client-2")


@pytest.mark.parametrize(
    ("coalitions", "reason"),
    [([1, 0], r"shape \(2,\)"), (1, r"shape \(\)"), ([[1, 2, 0]], "0 or 1"), ([0.5, 1, 1], "0 or 1")],
)
def test_what_is_not_a_coalition_is_refused(run: celm.Run, coalitions: Any, reason: str) -> None:
    with pytest.raises(CelmError, match=reason):
        celm.as_game(run)(coalitions)


def test_unknown_clients_and_utilities_are_refused(run: celm.Run) -> None:
    with pytest.raises(CelmError, match="client-9"):
        celm.as_game(run).value("client-9")
    with pytest.raises(CelmError, match="accuracyy"):
        celm.as_game(run, "accuracyy")
    with pytest.raises(CelmError, match="rare classes"):
        celm.as_game(run, "rare_class_accuracy").value("client-0")
