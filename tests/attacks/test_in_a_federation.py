"""Attacks in complete federations: the attacker's start models, clients, training, and repeatability."""

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
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.client_trainer import ClientResult, ClientTask
from celm.federation.round import FederationState, initial_state, run_round
from celm.models.state_dict import StateDict
from celm.models.state_ops import difference, l2_norm
from celm.objectives import objectives
from celm.objectives.label_smoothing import LabelSmoothing
from celm.objectives.local_sgd import TrainingOverrides
from celm.objectives.objective import LocalTask
from celm.rules import rules

KEEPERS = {
    "cgsv keep": {"name": "cgsv", "protocol": "keep"},
    "cgsv aggregation_only": {"name": "cgsv", "protocol": "aggregation_only"},
    "shapfed personal": {"name": "shapfed", "personal": True},
    "cffl paper": {"name": "cffl", "mode": "paper"},
    "cffl paper all": {"name": "cffl", "mode": "paper", "theta": 1.0},
    "rffl unbounded": {"name": "rffl", "gamma": 0.0},
}
"""Rules in modes with personal models."""
RULES: dict[str, dict[str, Any]] = {**{name: {"name": name} for name in rules.names()}, **KEEPERS}


class Recording(InProcessEngine):
    """Records the global model, and each client's start model and trained model, in every round."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation.trainer)
        self.starts: list[dict[str, StateDict]] = []
        self.trained: list[dict[str, StateDict]] = []
        self.models: list[StateDict] = []
        self.habits: list[dict[str, TrainingOverrides]] = []
        self.states: list[FederationState] = []

    def train(self, tasks: Any) -> list[ClientResult]:
        done = super().train(tasks)
        self.habits.append({job.client: job.overrides for job in tasks})
        self.starts.append({job.client: job.message.model for job in tasks})
        self.trained.append({job.client: out.update.model for job, out in zip(tasks, done, strict=True)})
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
    federation = build_federation(resolve_defaults(Experiment.parse(tables(**more))))
    engine = Recording(federation)
    state = initial_state(federation)
    while state.round_number < federation.rounds:
        engine.states.append(state)
        engine.models.append(state.model)
        state = run_round(federation, state, engine).state
    return federation, engine


# --- only the upload is changed -----------------------------------------------------------------------------


@pytest.mark.parametrize("label", RULES)
def test_scaling_does_not_compound_in_the_attackers_start_model(label: str) -> None:
    """All clients receive the poison that is in the global model; the attacker starts from little more of it.

    If its own upload came back to it, its start would be 30 times as long after each of the five rounds.
    """
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, engine = played(rule=RULES[label], attack=attack)
    for start in engine.starts:
        assert l2_norm(start["client-1"]) < 10 * max(
            l2_norm(start[other]) for other in ("client-0", "client-2")
        )


def test_a_standalone_attacker_trains_as_if_it_were_honest() -> None:
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, honest = played(rule={"name": "standalone"})
    _, attacked = played(rule={"name": "standalone"}, attack=attack)
    for one, other in zip(honest.trained, attacked.trained, strict=True):
        for client in one:
            assert all(torch.equal(one[client][name], other[client][name]) for name in one[client])


@pytest.mark.parametrize("label", ["cgsv keep", "rffl unbounded"])
def test_the_attacker_continues_from_its_trained_model_and_a_part_of_the_common_step(label: str) -> None:
    """Every value is the trained one, alone or plus the change of the global model."""
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, engine = played(rule=RULES[label], attack=attack)
    for number in range(1, 5):
        before, after = engine.models[number - 1], engine.models[number]
        for name, trained in engine.trained[number - 1]["client-1"].items():
            start, step = engine.starts[number]["client-1"][name], after[name] - before[name]
            near = {"atol": 1e-5 * (1 + float(after[name].abs().max())), "rtol": 1e-5}
            fits = torch.isclose(start, trained, **near) | torch.isclose(start, trained + step, **near)
            assert fits.all(), (number, name)


def test_the_attacker_starts_closer_to_its_trained_model_than_the_message() -> None:
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    federation, engine = played(rule=RULES["shapfed personal"], attack=attack)
    for number in range(1, 5):
        trained = engine.trained[number - 1]["client-1"]
        state = engine.states[number]
        message = federation.rule.message_for(state.server.rule, state.model, "client-1").model
        start = engine.starts[number]["client-1"]
        assert l2_norm(difference(start, trained)) < l2_norm(difference(message, trained)) / 5


def test_a_clipped_client_moves_at_most_by_the_clips_of_all_clients() -> None:
    attack = {"name": "scale_head", "client": "client-1", "strength": 30.0}
    _, engine = played(rule=RULES["cffl paper"], attack=attack)
    for before, after in pairwise(engine.starts):
        for name in before["client-1"]:
            moved = (after["client-1"][name] - before["client-1"][name]).abs().max()
            assert float(moved) <= (2 + 3) * 0.01 + 1e-6


# --- clients that take part -----------------------------------------------------------------------------------------


def test_a_sybil_takes_part_under_more_names_with_the_same_samples() -> None:
    attack = {"name": "sybil", "client": "client-1", "strength": 2}
    federation, engine = played(attack=attack, rule={"name": "fedavg"}, run={"rounds": 1, "workers": 0})
    clients = ("client-0", "client-1", "client-1-sybil-1", "client-1-sybil-2", "client-2")
    assert federation.context.clients == clients
    honest, _ = played(rule={"name": "fedavg"}, run={"rounds": 1, "workers": 0})
    held = federation.trainer.client_data
    for name in clients:
        own = "client-1" if "sybil" in name else name
        assert torch.equal(held[name].rows, honest.trainer.client_data[own].rows)
        assert federation.counts[name] == honest.counts[own]
    one, other = engine.trained[0]["client-1-sybil-1"], engine.trained[0]["client-1-sybil-2"]
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_a_sybil_of_a_client_with_wrong_labels_has_the_same_wrong_labels() -> None:
    split = {"name": "free_rider", "kind": "random_labels", "clients": 3}
    federation, _ = played(split=split, attack={"name": "sybil"}, run={"rounds": 1, "workers": 0})
    held = federation.trainer.client_data
    assert torch.equal(held["client-0"].labels, held["client-0-sybil-1"].labels)


@pytest.mark.parametrize("kind", ["few_labels", "repeated_samples", "random_labels", "copy_global", "noise"])
def test_a_sybil_of_a_free_rider_is_one_under_each_name(kind: str) -> None:
    split = {"name": "free_rider", "kind": kind, "clients": 3}
    run = {"rounds": 2, "workers": 0}
    federation, engine = played(split=split, attack={"name": "sybil"}, rule={"name": "fedavg"}, run=run)
    names = {"client-0", "client-0-sybil-1"}
    assert set(federation.partition.free_riders) == names
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
def test_a_client_with_an_attack_from_its_split_cannot_have_another(name: str, split: str) -> None:
    dealt = {"name": split, "kind": "replay_delta", "clients": 3}
    with pytest.raises(CelmError) as refused:
        build_federation(resolve_defaults(Experiment.parse(tables(split=dealt, attack={"name": name}))))
    for word in (name, "client-0", split, "replay_delta", "attack.client"):
        assert word in str(refused.value)


def test_another_client_may_attack_beside_a_free_rider() -> None:
    split = {"name": "free_rider", "kind": "copy_global", "clients": 3}
    attack = {"name": "scale_head", "client": "client-1"}
    federation, engine = played(split=split, attack=attack, run={"rounds": 1, "workers": 0})
    assert list(federation.attacks) == ["client-0", "client-1"]
    assert "client-0" not in engine.trained[0]


@pytest.mark.parametrize("chosen", [["client-2"], ["client-2", "client-0"]])
def test_a_coalition_is_the_chosen_clients_with_the_same_samples(chosen: list[str]) -> None:
    run = {"rounds": 1, "workers": 0}
    everyone, whole = played(rule={"name": "fedavg"}, run=run)
    some, part = played(rule={"name": "fedavg"}, run={**run, "clients": chosen})
    assert some.context.clients == tuple(sorted(chosen))
    for name in chosen:
        assert torch.equal(some.trainer.client_data[name].rows, everyone.trainer.client_data[name].rows)
        for key, tensor in part.trained[0][name].items():
            assert torch.equal(tensor, whole.trained[0][name][key])


def test_a_coalition_has_no_free_riders_or_attacks_of_other_clients() -> None:
    split = {"name": "frm", "clients": 4, "kind": "copy_global"}
    federation, _ = played(split=split, run={"rounds": 1, "workers": 0, "clients": ["client-3", "client-1"]})
    dealing = federation.partition
    assert (tuple(dealing.clients), dealing.free_riders, dict(dealing.attacks)) == (
        ("client-1", "client-3"),
        (),
        {},
    )
    assert dealing.rare_classes == (7, 8, 9)


def test_unknown_members_of_a_coalition_are_refused() -> None:
    with pytest.raises(CelmError, match=r"run\.clients: unknown client 'client-7'"):
        played(run={"rounds": 1, "clients": ["client-7"]})


# --- how the attacker trains --------------------------------------------------------------------------------


def one_job(**more: Any) -> tuple[Federation, ClientTask]:
    federation = build_federation(resolve_defaults(Experiment.parse(tables(**more))))
    asked: list[ClientTask] = []

    class Asking(InProcessEngine):
        def train(self, tasks: Any) -> list[ClientResult]:
            asked.extend(tasks)
            return super().train(tasks)

    run_round(federation, initial_state(federation), Asking(federation.trainer))
    return federation, next(job for job in asked if job.client == "client-1")


def test_the_overconfident_client_trains_as_if_its_epochs_and_rate_were_agreed() -> None:
    attack = {"name": "overconfident", "client": "client-1", "strength": 3.0, "epochs": 4}
    one, job = one_job(attack=attack, train={"batch": 16, "lr": 0.05})
    other, agreed = one_job(train={"batch": 16, "lr": 0.05 * 3, "epochs": 4})
    mine, honest = one.trainer.train(job).update, other.trainer.train(agreed).update
    assert mine.num_steps == honest.num_steps
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
    bench = federation.trainer
    holding = bench.client_data["client-1"]
    after = bench.train(job).update.model
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    with torch.no_grad():
        for own, value in zip(module.parameters(), job.message.model.values(), strict=True):
            own.copy_(value)
    loss = F.cross_entropy(module(bench.inputs[holding.rows]), holding.labels, label_smoothing=0.3)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for own, gradient, result in zip(module.parameters(), gradients, after.values(), strict=True):
        torch.testing.assert_close(result, own.detach() - 0.1 * gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", objectives.names())
def test_smooth_labels_work_with_every_objective(name: str) -> None:
    attack = {"name": "label_smoothed", "client": "client-1", "strength": 0.2}
    _, engine = played(objective={"name": name}, attack=attack, run={"rounds": 2, "workers": 0})
    assert all(tensor.isfinite().all() for tensor in engine.trained[1]["client-1"].values())
    _, honest = played(objective={"name": name}, run={"rounds": 2, "workers": 0})
    assert any(
        not torch.equal(tensor, honest.trained[0]["client-1"][key])
        for key, tensor in engine.trained[0]["client-1"].items()
    )


def test_the_gradients_of_smooth_labels_are_those_of_the_loss() -> None:
    federation, job = one_job(attack={"name": "label_smoothed", "client": "client-1"})
    bench = federation.trainer
    objective = LabelSmoothing(bench.objective, 0.4)
    holding = bench.client_data["client-1"]
    task: LocalTask[Any] = LocalTask(
        bench.module, bench.parameters, bench.head, job.message, holding.labels, bench.classes, 0.1, None
    )
    inputs = bench.inputs[holding.rows]
    loss = objective.loss(task, None, inputs, holding.labels)
    expected = torch.autograd.grad(loss, list(bench.parameters))
    for one, other in zip(expected, objective.gradients(task, None, inputs, holding.labels), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def attacked_until_two(name: str) -> Recording:
    attack = {"name": name, "client": "client-1", "last_round": 2}
    run = {"rounds": 4, "workers": 0, "local_heads": 4}
    return played(attack=attack, rule={"name": "fedavg"}, run=run)[1]


def test_after_its_last_round_an_attacker_trains_honestly() -> None:
    for name in ("copy_global", "invent_data"):
        engine = attacked_until_two(name)
        assert ["client-1" in trained for trained in engine.trained] == [False, False, True, True]
    for name in ("overconfident", "label_smoothed"):
        engine = attacked_until_two(name)
        assert [habits["client-1"] == TrainingOverrides() for habits in engine.habits] == [
            False,
            False,
            True,
            True,
        ]


def test_after_its_last_round_an_attacker_uploads_its_trained_model() -> None:
    """With local heads the state holds the uploaded heads."""
    engine = attacked_until_two("scale_head")
    for number, factor in ((1, 10), (2, 10), (3, 1)):
        for name, sent in engine.states[number].server.local_heads["client-1"].items():
            assert torch.equal(sent, factor * engine.trained[number - 1]["client-1"][name])


def test_before_its_first_round_an_attacker_trains_honestly() -> None:
    attack = {"name": "copy_global", "client": "client-1", "first_round": 2, "last_round": 3}
    engine = played(attack=attack, rule={"name": "fedavg"}, run={"rounds": 4, "workers": 0})[1]
    assert ["client-1" in trained for trained in engine.trained] == [True, False, False, True]


def test_a_larger_head_of_a_copy_does_not_compound() -> None:
    """It multiplies the head that it trained, not the one that it uploaded."""
    attack = {"name": "copy_global", "client": "client-1", "head": 10.0}
    run = {"rounds": 4, "workers": 0, "local_heads": 4}
    engine = played(attack=attack, rule={"name": "fedavg"}, run=run)[1]
    for number in (1, 2, 3):
        for name, sent in engine.states[number].server.local_heads["client-1"].items():
            torch.testing.assert_close(sent, 10 * engine.states[0].model[name])


def test_global_rows_are_available_also_while_heads_stay_local() -> None:
    attack = {"name": "fabricate_class", "client": "client-1", "rows": "global", "classes": [3, 8]}
    run = {"rounds": 4, "workers": 0, "local_heads": 4}
    engine = played(attack={**attack, "strength": 2.0}, rule={"name": "fedavg"}, run=run)[1]
    for number in (1, 2, 3):
        known = engine.models[number - 1]
        for name, sent in engine.states[number].server.local_heads["client-1"].items():
            trained = engine.trained[number - 1]["client-1"][name].clone()
            trained[[3, 8]] = 2.0 * known[name][[3, 8]]
            assert torch.equal(sent, trained)
    assert not torch.equal(engine.starts[2]["client-1"]["head.weight"], known["head.weight"])


# --- every attack on every split, and the same numbers everywhere -------------------------------------------


@pytest.mark.parametrize("split", ["pls", "frm"])
@pytest.mark.parametrize("name", [name for name in attacks.names() if name != "scale_norm"])
def test_every_attack_works_with_every_split(name: str, split: str) -> None:
    more = {"classes": [3]} if name == "fabricate_class" else {}
    attack = {"name": name, "client": "client-1", **more}
    _, engine = played(
        split={"name": split, "clients": 3},
        attack=attack,
        rule={"name": "celm"},
        run={"rounds": 2, "workers": 0},
    )
    assert len(engine.starts) == 2


def test_an_attack_that_does_not_fit_is_refused_before_training() -> None:
    with pytest.raises(CelmError, match="'fc7'"):
        build_federation(
            resolve_defaults(Experiment.parse(tables(attack={"name": "scale_layer", "layer": "fc7"})))
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["random_weights", "idle_after_warmup", "sybil", "overconfident", "label_smoothed"]
)
def test_the_numbers_are_the_same_for_any_number_of_workers(name: str, tmp_path: Any, outcome: Any) -> None:
    result = []
    for workers in (0, 2):
        experiment = celm.Experiment.parse(
            tables(attack={"name": name, "client": "client-1"}, run={"rounds": 3, "workers": workers})
        )
        celm.run(experiment, out=tmp_path / str(workers))
        result.append(outcome(tmp_path / str(workers)))
    assert result[0] == result[1]


def test_attacks_on_uploads_do_not_change_the_partition() -> None:
    honest, _ = played(run={"rounds": 1, "workers": 0})
    attacked, _ = played(attack={"name": "scale_head"}, run={"rounds": 1, "workers": 0})
    for name, rows in honest.partition.clients.items():
        assert np.array_equal(rows, attacked.partition.clients[name])
