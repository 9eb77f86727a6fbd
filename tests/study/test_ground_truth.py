"""The truth about contributions: games with known values, coalitions that are runs, and what counts as agreement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from celm.base.errors import CelmError
from celm.cli.app import app
from celm.study.ground_truth import (
    collaboration_gains,
    compute_agreements,
    compute_truths,
    describe_requirements,
    measure_agreement,
    truth_from_worth,
)
from celm.study.plan import plan_runs
from celm.study.results import RunOutcome
from celm.study.scales import Scale
from celm.study.spec import StudySpec, coalition_methods, load_study
from celm.study.study_tables import build_truth_table
from support.run_results import make_result

SMALL = StudySpec.model_validate(
    {
        "name": "small",
        "title": "Small",
        "ground_truth": True,
        "seeds": [1],
        "metrics": ["accuracy", "rare_class_accuracy"],
        "methods": {"celm": {}, "data_size": {"method": "fedavg", "rule": {"by_size": True}}},
        "rows": [{"dataset": "digits", "split": {"name": "pls", "clients": 3}}],
    }
)
GAIN = (0.1, 0.5, 0.3)
"""What each client adds, whoever is there."""


def outcomes_of(
    folder: Path,
    worth: Callable[[tuple[int, ...]], float | None],
    weights: dict[str, list[float]],
    study: StudySpec = SMALL,
) -> dict[tuple[str, str, int], RunOutcome]:
    """The cells of the small study as if they had been run: coalitions by their worth, methods by their weights."""
    found = {}
    for key, cell in plan_runs(study, Scale.paper, folder).items():
        label = key[1]
        if label in weights:
            result = make_result(weights={f"client-{i}": weight for i, weight in enumerate(weights[label])})
        else:
            members = tuple(int(part) for part in label.removeprefix("clients ").split("+"))
            result = make_result(accuracy=worth(members))
        found[key] = RunOutcome(cell, result)
    return found


def additive(members: tuple[int, ...]) -> float:
    return sum(GAIN[i] for i in members)


WEIGHTS = {"celm": [0.2, 0.6, 0.2], "data_size": [1 / 3, 1 / 3, 1 / 3]}


def test_gains_are_over_what_each_client_is_worth_alone(tmp_path: Path) -> None:
    found = outcomes_of(tmp_path, additive, WEIGHTS)
    for key, outcome in found.items():
        if key[1] == "celm":
            found[key] = RunOutcome(outcome.spec, make_result(accuracy=0.8))
    gain, _ = collaboration_gains(SMALL, found)
    assert (gain["method"], gain["utility"]) == ("celm", "accuracy")
    assert gain["by_client"] == pytest.approx({"client-0": 0.7, "client-1": 0.3, "client-2": 0.5})
    assert gain["mean"] == pytest.approx(0.5)
    assert gain["spread"] == pytest.approx((0.08 / 3) ** 0.5)
    table = build_truth_table(SMALL, found, Scale.paper)
    assert table.rows[-2:] == ["accuracy: mean gain", "accuracy: spread of gains"]
    assert table.format_ours("accuracy: mean gain", "celm") == "50.00"
    assert table.format_ours("accuracy: spread of gains", "celm") == "16.33"


def test_every_coalition_but_the_empty_one_is_a_run_of_its_members(tmp_path: Path) -> None:
    cells = plan_runs(SMALL, Scale.paper, tmp_path)
    members = [cell.experiment.run.clients for key, cell in cells.items() if key[1] not in SMALL.methods]
    assert len(members) == len(set(members)) == 7
    assert all(
        cell.experiment.rule.name == "fedavg" for key, cell in cells.items() if key[1] not in SMALL.methods
    )
    whole = {**cells["digits pls", "celm", 1].experiment.to_dict()}
    part = {**cells["digits pls", "clients 0+2", 1].experiment.to_dict()}
    assert part["run"]["clients"] == ["client-0", "client-2"]
    for table in ("dataset", "split", "model", "train"):
        assert whole[table] == part[table]
    assert part["run"]["local_heads"] == 0


@given(st.integers(1, 6))
def test_coalitions_are_all_subsets(clients: int) -> None:
    names = [f"client-{i}" for i in range(clients)]
    found = [tuple(own.settings["run"]["clients"]) for own in coalition_methods(names).values()]
    assert len(set(found)) == len(found) == 2**clients - 1
    assert sum(map(len, found)) == clients * 2 ** (clients - 1)


NATURAL = """
title = "Natural"
ground_truth = true
seeds = [1]
[methods]
fedavg = {}
[[rows]]
dataset = "heart"
split = "natural"
run = { rounds = 2 }
"""


def test_natural_clients_form_coalitions_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(NATURAL)
    cells = plan_runs(load_study(str(tmp_path / "own.toml")), Scale.paper, tmp_path / "out")
    assert len(cells) == 1 + 15
    pair = cells["heart natural", "clients 0+2", 1].experiment
    assert pair.run.clients == ("cleveland", "switzerland")


@pytest.mark.slow
def test_truth_of_natural_clients_has_their_names(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(NATURAL)
    arguments = ["study", str(tmp_path / "own.toml"), f"--out={tmp_path / 'out'}", "--workers=1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (truth,) = json.loads((tmp_path / "out" / "truth.json").read_text())["truth"]
    assert list(truth["shapley"]) == ["cleveland", "hungarian", "switzerland", "va"]
    # Efficiency: the values add up to the worth of all.
    assert sum(truth["shapley"].values()) == pytest.approx(truth["everyone"])


def test_thirty_clients_are_too_many_for_all_coalitions(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(NATURAL.replace("heart", "hapt"))
    with pytest.raises(CelmError, match=r"row 'hapt natural' has 30 clients.*at most 12"):
        load_study(str(tmp_path / "own.toml"))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=5))
def test_what_clients_add_whoever_is_there_is_their_value(gains: list[float]) -> None:
    clients = [f"client-{i}" for i in range(len(gains))]
    worth = {
        coalition: sum(gain for i, gain in enumerate(gains) if coalition >> i & 1)
        for coalition in range(1, 1 << len(gains))
    }
    truth = truth_from_worth("row", 1, "accuracy", clients, worth)
    assert list(truth.shapley.values()) == pytest.approx(gains, abs=1e-9)
    assert list(truth.leave_one_out.values()) == pytest.approx(gains, abs=1e-9)


def test_the_glove_game() -> None:
    """A pair is worth 1; clients 0 and 1 have a left glove each, client 2 the right one: (1, 1, 4) / 6."""
    worth = {coalition: float(bool(coalition & 4) and bool(coalition & 3)) for coalition in range(1, 8)}
    truth = truth_from_worth("row", 1, "accuracy", ["a", "b", "c"], worth)
    assert list(truth.shapley.values()) == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    assert list(truth.leave_one_out.values()) == [0, 0, 1]
    assert truth.everyone == 1


def test_truth_comes_from_the_runs_and_estimators_are_held_against_it(tmp_path: Path) -> None:
    outcomes = outcomes_of(tmp_path, additive, WEIGHTS)
    (truth,) = compute_truths(SMALL, outcomes)
    assert (truth.row, truth.seed, truth.utility) == ("digits pls", 1, "accuracy")
    assert dict(truth.shapley) == pytest.approx(
        dict(zip(("client-0", "client-1", "client-2"), GAIN, strict=True))
    )
    found = {(one.method, one.reference): one.values for one in compute_agreements(SMALL, outcomes)}
    # Weights (2, 6, 2) and gains (1, 5, 3): deviations (-4, 8, -4)/3 and (-2, 2, 0), so 24 / sqrt(96 * 8) = sqrt(3)/2.
    assert found["celm", "shapley"]["Pearson"] == pytest.approx(3**0.5 / 2)
    assert found["celm", "leave_one_out"]["top-1"] == 1
    assert found["celm", "shapley"]["bottom-1"] == 0.5
    table = build_truth_table(SMALL, outcomes, Scale.paper)
    assert table.ours["shapley of accuracy: Pearson", "celm"].mean == pytest.approx(3**0.5 / 2)
    assert not any("rare_class" in row for row in table.rows)
    assert table.columns == ["celm", "data_size"]


def test_an_estimator_judged_by_fewer_federations_than_others_is_marked(tmp_path: Path) -> None:
    twice = SMALL.model_copy(update={"seeds": [1, 2]})
    outcomes = outcomes_of(tmp_path, additive, WEIGHTS, twice)
    assert build_truth_table(twice, outcomes, Scale.paper).note == ""
    lost = ("digits pls", "celm", 2)
    table = build_truth_table(
        twice, {**outcomes, lost: RunOutcome(outcomes[lost].spec, None, "failed")}, Scale.paper
    )
    assert table.note == "† 1 of 2 federations"
    row = "shapley of accuracy: Pearson"
    assert [table.format_ours(row, method)[-1] == "†" for method in table.columns] == [True, False]


def test_federations_that_are_not_run_yet_are_missed_and_those_that_say_nothing_are_not(
    tmp_path: Path,
) -> None:
    three = SMALL.model_copy(update={"seeds": [1, 2, 3]})
    outcomes = outcomes_of(tmp_path, additive, WEIGHTS, three)
    begun = {key: outcome for key, outcome in outcomes.items() if key[2] == 1}
    assert build_truth_table(three, begun, Scale.paper).note == "† 1 of 3 federations"
    flat = {
        key: RunOutcome(outcome.spec, make_result(accuracy=0.25 * len(key[1].split("+"))))
        if key[2] == 2 and key[1].startswith("clients")
        else outcome
        for key, outcome in outcomes.items()
    }
    table = build_truth_table(three, flat, Scale.paper)
    assert table.note == ""
    # Gains are known there, too.
    counts = {row.startswith("accuracy: "): figure.count for (row, _), figure in table.ours.items()}
    assert counts == {False: 2, True: 3}


def test_without_all_coalitions_nothing_is_said(tmp_path: Path) -> None:
    outcomes = outcomes_of(tmp_path, additive, WEIGHTS)
    key = ("digits pls", "clients 0+2", 1)
    for missing in ({**outcomes, key: RunOutcome(outcomes[key].spec, None, "failed")}, dict(outcomes)):
        if missing[key].result is not None:
            del missing[key]
        assert compute_truths(SMALL, missing) == []
        assert build_truth_table(SMALL, missing, Scale.paper).rows == []


def test_coalitions_of_some_clients_only_are_not_the_truth(tmp_path: Path) -> None:
    """A study in progress: every minute, its table is made from the runs so far."""
    outcomes = outcomes_of(tmp_path, additive, WEIGHTS)
    coalitions = [key for key in outcomes if key[1].startswith("clients")]
    for done in range(len(coalitions)):
        assert compute_truths(SMALL, {key: outcomes[key] for key in coalitions[:done]}) == []
    (truth, *_) = compute_truths(SMALL, outcomes)
    assert list(truth.shapley.values()) == pytest.approx(GAIN)


def test_weights_all_the_same_say_nothing_and_guess() -> None:
    same, truth = {"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 2.0}
    assert measure_agreement(same, truth) == {"Pearson": 0.0, "Spearman": 0.0, "top-1": 0.5, "bottom-1": 0.5}
    assert set(measure_agreement(truth, same).values()) == {None}


def distinct(values: list[int]) -> dict[str, float]:
    return {f"client-{i}": float(value) for i, value in enumerate(values)}


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True), st.floats(0.1, 10), st.floats(-5, 5)
)
def test_agreement_with_oneself_is_whole_whatever_the_scale(
    values: list[int], scale: float, shift: float
) -> None:
    truth = distinct(values)
    found = measure_agreement({name: scale * value + shift for name, value in truth.items()}, truth)
    assert found == {name: pytest.approx(1) for name in ("Pearson", "Spearman", "top-1", "bottom-1")}
    against = measure_agreement({name: -value for name, value in truth.items()}, truth)
    assert (against["Pearson"], against["Spearman"]) == (pytest.approx(-1), pytest.approx(-1))
    assert (against["top-1"], against["bottom-1"]) == (0, 0)


def test_what_estimators_need_is_said() -> None:
    study = load_study("estimators")
    found = {method: describe_requirements(study, method) for method in study.methods}
    assert found["celm"] == found["shapfed"] == "client models"
    assert found["data_size"] == "client models, reported sizes"
    assert found["gtg_shapley"] == "client models, held-out data"
    assert "the accuracy of a second model" in found["fedce"]


def test_a_part_of_the_study_keeps_all_its_coalitions(tmp_path: Path) -> None:
    study = load_study("estimators")
    cells = plan_runs(study, Scale.paper, tmp_path, "split=pls clients=8 method=celm seed=42")
    assert len(cells) == 255 + 1
    assert {key[0] for key in cells} == {"digits pls, 8 clients"}


def test_smoke_takes_every_split_once_with_three_clients(tmp_path: Path) -> None:
    study = load_study("estimators")
    cells = plan_runs(study, Scale.smoke, tmp_path)
    splits = {row.split_label for row in study.rows}
    assert len(cells) == len(splits) * (7 + len(study.methods))
    assert {cell.experiment.split.clients for cell in cells.values()} == {3}


@pytest.mark.slow
def test_smoke_study_finds_the_truth_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    arguments = [
        "study",
        "estimators",
        "--scale=smoke",
        "--only=split=maverick",
        f"--out={tmp_path}",
        "--workers=1",
    ]
    first = CliRunner().invoke(app, [*arguments, "--format=json"])
    assert first.exit_code == 0, first.stderr
    found = json.loads((tmp_path / "truth.json").read_text())
    assert {one["utility"] for one in found["truth"]} == {
        "accuracy",
        "balanced_accuracy",
        "rare_class_accuracy",
    }
    for truth in found["truth"]:
        assert sum(truth["shapley"].values()) == pytest.approx(truth["everyone"])
    (rare,) = [truth for truth in found["truth"] if truth["utility"] == "rare_class_accuracy"]
    assert max(rare["shapley"], key=rare["shapley"].get) == "client-0"
    assert found["retraining_seconds"] > 0
    whole = next((tmp_path / "cells").glob("*clients_0+1+2-*"))
    stamp = (whole / "result.json").stat().st_mtime_ns
    second = CliRunner().invoke(app, [*arguments, "--format=json"])
    assert json.loads(second.stdout)["cells"] == json.loads(first.stdout)["cells"]
    assert (whole / "result.json").stat().st_mtime_ns == stamp
