"""Attacks in whole federations: what the attacker goes on from, who takes part, how it trains, the same everywhere."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import celm
from celm.attacks import attacks
from celm.attacks.copy_global import CopyGlobal
from celm.base.errors import CelmError
from celm.engines.in_process import InProcess
from celm.federation.assembly import Federation, assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.jobs import Job, Outcome
from celm.federation.rounds import State, begin, play
from celm.models.deltas import length
from celm.models.state import StateDict
from celm.objectives import objectives
from celm.objectives.habits import Habits
from celm.objectives.objective import Task
from celm.objectives.smoothed import Smoothed
from celm.rules import rules

KEEPERS = {
    "cgsv keep": {"name": "cgsv", "protocol": "keep"},
    "cgsv aggregation_only": {"name": "cgsv", "protocol": "aggregation_only"},
    "shapfed personal": {"name": "shapfed", "personal": True},
    "cffl paper": {"name": "cffl", "mode": "paper"},
    "cffl paper all": {"name": "cffl", "mode": "paper", "theta": 1.0},
    "rffl unbounded": {"name": "rffl", "gamma": 0.0},
}
"""Rules in the modes in which clients hold models of their own."""
RULES: dict[str, dict[str, Any]] = {**{name: {"name": name} for name in rules.names()}, **KEEPERS}


class Recording(InProcess):
    """Keeps the global model, what each client started from and what it trained, round by round."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation.workbench)
        self.starts: list[dict[str, StateDict]] = []
        self.trained: list[dict[str, StateDict]] = []
        self.models: list[StateDict] = []
        self.habits: list[dict[str, Habits]] = []
        self.states: list[State] = []

    def work(self, jobs: Any) -> list[Outcome]:
        done = super().work(jobs)
        self.habits.append({job.client: job.habits for job in jobs})
        self.starts.append({job.client: job.delivery.model for job in jobs})
        self.trained.append({job.client: out.update.model for job, out in zip(jobs, done, strict=True)})
        return done


def tables(**more: Any) -> dict[str, Any]:
    return {
        "dataset": {"name": "digits", "limit": 40},
        "split": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "widths": [6]},
        "train": {"batch": 16},
        "probe": {"steps": 2},
        "run": {"rounds": 5, "workers": 0},
        **more,
    }


def played(**more: Any) -> tuple[Federation, Recording]:
    torch.set_num_threads(1)
    federation = assemble(resolve(Experiment.parse(tables(**more))))
    engine = Recording(federation)
    state = begin(federation)
    while state.number < federation.rounds:
        engine.states.append(state)
        engine.models.append(state.model)
        state = play(federation, state, engine).state
    return federation, engine


# --- the upload alone is changed ----------------------------------------------------------------------------


@pytest.mark.parametrize("label", RULES)
def test_scaling_does_not_compound_in_what_the_attacker_keeps(label: str) -> None:
    """What comes back through the global model comes back to all; the attacker starts from little more of it.

    Were its own upload to come back to it, its start would be 30 times as long after each of the five rounds.
    """
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, engine = played(rule=RULES[label], attack=attack)
    for start in engine.starts:
        assert length(start["client-1"]) < 10 * max(
            length(start[other]) for other in ("client-0", "client-2")
        )


def test_an_attacker_that_is_alone_with_its_model_trains_as_if_it_were_honest() -> None:
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, honest = played(rule={"name": "standalone"})
    _, attacked = played(rule={"name": "standalone"}, attack=attack)
    for one, other in zip(honest.trained, attacked.trained, strict=True):
        for client in one:
            assert all(torch.equal(one[client][name], other[client][name]) for name in one[client])


@pytest.mark.parametrize("label", ["cgsv keep", "rffl unbounded"])
def test_what_the_attacker_goes_on_from_is_what_it_trained_and_a_part_of_the_common_step(label: str) -> None:
    """Every value is the trained one, alone or moved as the global model was."""
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, engine = played(rule=RULES[label], attack=attack)
    for number in range(1, 5):
        before, after = engine.models[number - 1], engine.models[number]
        for name, trained in engine.trained[number - 1]["client-1"].items():
            start, step = engine.starts[number]["client-1"][name], after[name] - before[name]
            near = {"atol": 1e-5 * (1 + float(after[name].abs().max())), "rtol": 1e-5}
            fits = torch.isclose(start, trained, **near) | torch.isclose(start, trained + step, **near)
            assert fits.all(), (number, name)


def test_a_personal_model_lies_between_what_the_attacker_trained_and_the_global_one() -> None:
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, engine = played(rule=RULES["shapfed personal"], attack=attack)
    for number in range(1, 5):
        for name, trained in engine.trained[number - 1]["client-1"].items():
            start, common = engine.starts[number]["client-1"][name], engine.models[number][name]
            slack = 1e-5 * (1 + common.abs())
            assert (start >= torch.minimum(trained, common) - slack).all()
            assert (start <= torch.maximum(trained, common) + slack).all()


def test_a_clipped_client_moves_by_no_more_than_everybodys_clips() -> None:
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, engine = played(rule=RULES["cffl paper"], attack=attack)
    for before, after in pairwise(engine.starts):
        for name in before["client-1"]:
            moved = (after["client-1"][name] - before["client-1"][name]).abs().max()
            assert float(moved) <= (2 + 3) * 0.01 + 1e-6


# --- who takes part -----------------------------------------------------------------------------------------


def test_a_sybil_takes_part_under_more_names_with_the_same_samples() -> None:
    attack = {"name": "sybil", "client": "client-1", "strength": 2}
    federation, engine = played(attack=attack, rule={"name": "fedavg"}, run={"rounds": 1, "workers": 0})
    clients = ("client-0", "client-1", "client-1-sybil-1", "client-1-sybil-2", "client-2")
    assert federation.facts.clients == clients
    honest, _ = played(rule={"name": "fedavg"}, run={"rounds": 1, "workers": 0})
    held = federation.workbench.holdings
    for name in clients:
        own = "client-1" if "sybil" in name else name
        assert torch.equal(held[name].rows, honest.workbench.holdings[own].rows)
        assert federation.counts[name] == honest.counts[own]
    one, other = engine.trained[0]["client-1-sybil-1"], engine.trained[0]["client-1-sybil-2"]
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_a_sybil_of_a_client_with_wrong_labels_has_the_same_wrong_labels() -> None:
    split = {"name": "free_rider", "kind": "random_labels", "clients": 3}
    federation, _ = played(split=split, attack={"name": "sybil"}, run={"rounds": 1, "workers": 0})
    held = federation.workbench.holdings
    assert torch.equal(held["client-0"].labels, held["client-0-sybil-1"].labels)


@pytest.mark.parametrize("kind", ["few_labels", "repeated_samples", "random_labels", "copy_global", "noise"])
def test_a_sybil_of_a_free_rider_is_one_under_each_name(kind: str) -> None:
    split = {"name": "free_rider", "kind": kind, "clients": 3}
    run = {"rounds": 2, "workers": 0}
    federation, engine = played(split=split, attack={"name": "sybil"}, rule={"name": "fedavg"}, run=run)
    names = {"client-0", "client-0-sybil-1"}
    assert set(federation.dealing.free_riders) == names
    works = kind not in ("copy_global", "noise")
    assert all(names.isdisjoint(trained) is not works for trained in engine.trained)


def test_names_of_a_free_rider_that_adds_noise_add_noise_of_their_own() -> None:
    split = {"name": "frm", "kind": "noise", "clients": 3}
    federation, _ = played(split=split, attack={"name": "sybil", "strength": 2}, rule={"name": "fedavg"})
    names = ["client-0", "client-0-sybil-1", "client-0-sybil-2"]
    assert {name: attack.client for name, attack in federation.attacks.items()} == {
        name: name for name in names
    }
    assert {type(attack) for attack in federation.attacks.values()} == {CopyGlobal}


@pytest.mark.parametrize("split", ["free_rider", "frm"])
@pytest.mark.parametrize("name", ["scale_head", "copy_global", "flip_labels", "overconfident"])
def test_a_client_that_its_split_has_misbehave_cannot_attack_too(name: str, split: str) -> None:
    dealt = {"name": split, "kind": "replay_delta", "clients": 3}
    with pytest.raises(CelmError) as refused:
        assemble(resolve(Experiment.parse(tables(split=dealt, attack={"name": name}))))
    assert str(refused.value) == (
        f"attack '{name}' of client-0: by split '{split}' it does 'replay_delta' already"
        " (choose another attack.client)"
    )


def test_another_client_may_attack_beside_a_free_rider() -> None:
    split = {"name": "free_rider", "kind": "copy_global", "clients": 3}
    attack = {"name": "scale_head", "client": "client-1"}
    federation, engine = played(split=split, attack=attack, run={"rounds": 1, "workers": 0})
    assert list(federation.attacks) == ["client-0", "client-1"]
    assert "client-0" not in engine.trained[0]


@pytest.mark.parametrize("chosen", [["client-2"], ["client-2", "client-0"]])
def test_a_coalition_is_the_same_clients_with_the_same_samples_and_nobody_else(chosen: list[str]) -> None:
    run = {"rounds": 1, "workers": 0}
    everyone, whole = played(rule={"name": "fedavg"}, run=run)
    some, part = played(rule={"name": "fedavg"}, run={**run, "clients": chosen})
    assert some.facts.clients == tuple(sorted(chosen))
    for name in chosen:
        assert torch.equal(some.workbench.holdings[name].rows, everyone.workbench.holdings[name].rows)
        for key, tensor in part.trained[0][name].items():
            assert torch.equal(tensor, whole.trained[0][name][key])


def test_a_coalition_leaves_out_what_is_said_of_others() -> None:
    split = {"name": "frm", "clients": 4, "kind": "copy_global"}
    federation, _ = played(split=split, run={"rounds": 1, "workers": 0, "clients": ["client-3", "client-1"]})
    dealing = federation.dealing
    assert (tuple(dealing.clients), dealing.free_riders, dict(dealing.behaviours)) == (
        ("client-1", "client-3"),
        (),
        {},
    )
    assert dealing.rare_classes == (7, 8, 9)


def test_unknown_members_of_a_coalition_are_refused() -> None:
    with pytest.raises(CelmError, match=r"run\.clients: no client 'client-7'"):
        played(run={"rounds": 1, "clients": ["client-7"]})


# --- how the attacker trains --------------------------------------------------------------------------------


def one_job(**more: Any) -> tuple[Federation, Job]:
    federation = assemble(resolve(Experiment.parse(tables(**more))))
    asked: list[Job] = []

    class Asking(InProcess):
        def work(self, jobs: Any) -> list[Outcome]:
            asked.extend(jobs)
            return super().work(jobs)

    play(federation, begin(federation), Asking(federation.workbench))
    return federation, next(job for job in asked if job.client == "client-1")


def test_the_overconfident_client_trains_as_if_its_epochs_and_rate_were_agreed() -> None:
    attack = {"name": "overconfident", "client": "client-1", "strength": 3.0, "epochs": 4}
    one, job = one_job(attack=attack, train={"batch": 16, "lr": 0.05})
    other, agreed = one_job(train={"batch": 16, "lr": 0.05 * 3, "epochs": 4})
    mine, honest = one.workbench.work(job).update, other.workbench.work(agreed).update
    assert mine.steps == honest.steps
    for name, tensor in honest.model.items():
        torch.testing.assert_close(mine.model[name], tensor)
    assert one.experiment.train.epochs == 1


def test_only_the_attacker_trains_otherwise() -> None:
    attack = {"name": "overconfident", "client": "client-1"}
    run = {"rounds": 1, "workers": 0}
    _, attacked = played(attack=attack, run=run)
    _, honest = played(run=run)
    for client in ("client-0", "client-2"):
        for name, tensor in honest.trained[0][client].items():
            assert torch.equal(tensor, attacked.trained[0][client][name])
    assert not torch.equal(
        honest.trained[0]["client-1"]["head.weight"], attacked.trained[0]["client-1"]["head.weight"]
    )


def test_smooth_labels_are_those_of_torch() -> None:
    attack = {"name": "label_smoothed", "client": "client-1", "strength": 0.3}
    federation, job = one_job(attack=attack, train={"batch": 10_000, "lr": 0.1})
    bench = federation.workbench
    holding = bench.holdings["client-1"]
    after = bench.work(job).update.model
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    with torch.no_grad():
        for own, value in zip(module.parameters(), job.delivery.model.values(), strict=True):
            own.copy_(value)
    loss = F.cross_entropy(module(bench.inputs[holding.rows]), holding.labels, label_smoothing=0.3)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for own, gradient, found in zip(module.parameters(), gradients, after.values(), strict=True):
        torch.testing.assert_close(found, own.detach() - 0.1 * gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", objectives.names())
def test_smooth_labels_go_with_every_objective(name: str) -> None:
    attack = {"name": "label_smoothed", "client": "client-1", "strength": 0.2}
    _, engine = played(objective={"name": name}, attack=attack, run={"rounds": 2, "workers": 0})
    assert all(tensor.isfinite().all() for tensor in engine.trained[1]["client-1"].values())
    _, honest = played(objective={"name": name}, run={"rounds": 2, "workers": 0})
    assert any(
        not torch.equal(tensor, honest.trained[0]["client-1"][key])
        for key, tensor in engine.trained[0]["client-1"].items()
    )


def test_the_loss_of_smooth_labels_has_the_gradients_that_are_descended() -> None:
    federation, job = one_job(attack={"name": "label_smoothed", "client": "client-1"})
    bench = federation.workbench
    objective = Smoothed(bench.objective, 0.4)
    holding = bench.holdings["client-1"]
    task: Task[Any] = Task(
        bench.module, bench.parameters, bench.head, job.delivery, holding.labels, bench.classes, 0.1, None
    )
    inputs = bench.inputs[holding.rows]
    loss = objective.loss(task, None, inputs, holding.labels)
    expected = torch.autograd.grad(loss, list(bench.parameters))
    for one, other in zip(expected, objective.gradients(task, None, inputs, holding.labels), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def attacked_until_two(name: str) -> Recording:
    attack = {"name": name, "client": "client-1", "last": 2}
    run = {"rounds": 4, "workers": 0, "local_heads": 4}
    return played(attack=attack, rule={"name": "fedavg"}, run=run)[1]


def test_after_its_last_round_an_attacker_trains_as_all_do() -> None:
    for name in ("copy_global", "invent_data"):
        engine = attacked_until_two(name)
        assert ["client-1" in trained for trained in engine.trained] == [False, False, True, True]
    for name in ("overconfident", "label_smoothed"):
        engine = attacked_until_two(name)
        assert [habits["client-1"] == Habits() for habits in engine.habits] == [False, False, True, True]


def test_after_its_last_round_an_attacker_sends_what_it_trained() -> None:
    """With local heads the state holds what was sent."""
    engine = attacked_until_two("scale_head")
    for number, factor in ((1, 10), (2, 10), (3, 1)):
        for name, sent in engine.states[number].heads["client-1"].items():
            assert torch.equal(sent, factor * engine.trained[number - 1]["client-1"][name])


def test_before_its_first_round_an_attacker_works_as_all_do() -> None:
    attack = {"name": "copy_global", "client": "client-1", "first": 2, "last": 3}
    engine = played(attack=attack, rule={"name": "fedavg"}, run={"rounds": 4, "workers": 0})[1]
    assert ["client-1" in trained for trained in engine.trained] == [True, False, False, True]


def test_a_larger_head_of_a_copy_does_not_compound() -> None:
    """It multiplies the head that it keeps, not the one that it sent."""
    attack = {"name": "copy_global", "client": "client-1", "head": 10.0}
    run = {"rounds": 4, "workers": 0, "local_heads": 4}
    engine = played(attack=attack, rule={"name": "fedavg"}, run=run)[1]
    for number in (1, 2, 3):
        for name, sent in engine.states[number].heads["client-1"].items():
            torch.testing.assert_close(sent, 10 * engine.states[0].model[name])


def test_rows_of_the_global_model_are_known_also_while_the_attacker_keeps_its_own_head() -> None:
    attack = {"name": "fabricate_class", "client": "client-1", "rows": "global", "classes": [3, 8]}
    run = {"rounds": 4, "workers": 0, "local_heads": 4}
    engine = played(attack={**attack, "strength": 2.0}, rule={"name": "fedavg"}, run=run)[1]
    for number in (1, 2, 3):
        known = engine.models[number - 1]
        for name, sent in engine.states[number].heads["client-1"].items():
            trained = engine.trained[number - 1]["client-1"][name].clone()
            trained[[3, 8]] = 2.0 * known[name][[3, 8]]
            assert torch.equal(sent, trained)
    assert not torch.equal(engine.starts[2]["client-1"]["head.weight"], known["head.weight"])


# --- every attack on every split, and the same numbers everywhere -------------------------------------------


@pytest.mark.parametrize("split", ["pls", "frm"])
@pytest.mark.parametrize("name", [name for name in attacks.names() if name != "scale_norm"])
def test_every_attack_goes_with_every_split(name: str, split: str) -> None:
    more = {"classes": [3]} if name == "fabricate_class" else {}
    attack = {"name": name, "client": "client-1", **more}
    _, engine = played(
        split={"name": split, "clients": 3},
        attack=attack,
        rule={"name": "celm"},
        run={"rounds": 2, "workers": 0},
    )
    assert len(engine.starts) == 2


def test_what_does_not_fit_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(CelmError, match="no layer 'fc7'"):
        assemble(resolve(Experiment.parse(tables(attack={"name": "scale_layer", "layer": "fc7"}))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["random_weights", "idle_after_warmup", "sybil", "overconfident", "label_smoothed"]
)
def test_the_numbers_are_the_same_for_any_number_of_workers(name: str, tmp_path: Any, outcome: Any) -> None:
    found = []
    for workers in (0, 2):
        experiment = celm.Experiment.parse(
            tables(attack={"name": name, "client": "client-1"}, run={"rounds": 3, "workers": workers})
        )
        celm.run(experiment, out=tmp_path / str(workers))
        found.append(outcome(tmp_path / str(workers)))
    assert found[0] == found[1]


def test_dealing_is_not_changed_by_attacks_on_uploads() -> None:
    honest, _ = played(run={"rounds": 1, "workers": 0})
    attacked, _ = played(attack={"name": "scale_head"}, run={"rounds": 1, "workers": 0})
    for name, rows in honest.dealing.clients.items():
        assert np.array_equal(rows, attacked.dealing.clients[name])
