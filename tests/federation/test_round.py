"""The round: who takes part, what is delivered, who is left out; seen by an engine that records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import celm
from celm.attacks.attack import Attack, AttackContext
from celm.base.client_order import natural_sorted
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.client_trainer import ClientResult, ClientTask
from celm.federation.round import FederationState, initial_state, run_round, select_clients
from celm.models.state_dict import StateDict


def federation_of(**tables: Any) -> Federation:
    torch.set_num_threads(1)
    base: dict[str, Any] = {
        "split": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "widths": [4]},
        "probe": {"steps": 2},
        "run": {"rounds": 6},
    }
    return build_federation(resolve_defaults(Experiment.parse({**base, **tables})))


class Recording:
    """Does the jobs here, keeps what was asked, and changes what comes back as the test says."""

    def __init__(
        self, federation: Federation, change: Callable[[ClientTask, ClientResult], ClientResult] | None = None
    ) -> None:
        self.engine = InProcessEngine(federation.trainer)
        self.change = change or (lambda job, outcome: outcome)
        self.rounds: list[dict[str, ClientTask]] = []
        self.outcomes: list[dict[str, ClientResult]] = []

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        done = [
            self.change(job, outcome) for job, outcome in zip(tasks, self.engine.train(tasks), strict=True)
        ]
        self.rounds.append({job.client: job for job in tasks})
        self.outcomes.append({job.client: outcome for job, outcome in zip(tasks, done, strict=True)})
        return done

    def evaluate(self, models: Sequence[StateDict], *more: Any) -> list[Tensor]:
        return self.engine.evaluate(models, *more)

    def close(self) -> None:
        pass


def play_all(federation: Federation, engine: Recording) -> tuple[list[FederationState], list[dict[str, Any]]]:
    """The states before the first round and after each, and the records."""
    states, records = [initial_state(federation)], []
    while states[-1].round_number < federation.rounds:
        played = run_round(federation, states[-1], engine)
        states.append(played.state)
        records.append(played.record)
    return states, records


def same(one: StateDict, other: StateDict, names: Sequence[str]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in names)


# --- local heads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "run", "local"),
    [
        ({"name": "celm", "warmup": 3}, {}, 3),
        ({"name": "celm", "warmup": 3}, {"local_heads": 0}, 0),
        ({"name": "celm", "warmup": 2}, {"local_heads": 4}, 4),
        ({"name": "fedavg"}, {}, 0),
        ({"name": "fedavg"}, {"local_heads": 2}, 2),
    ],
)
def test_clients_keep_their_own_head_for_as_many_rounds_as_said(
    rule: dict[str, Any], run: dict[str, Any], local: int
) -> None:
    federation = federation_of(rule=rule, run={"rounds": 6, **run})
    assert federation.server.local_head_rounds == local
    engine = Recording(federation)
    states, _ = play_all(federation, engine)
    head = federation.context.head
    backbone = [name for name in federation.initial_model if name not in head]
    assert head
    assert backbone
    for number, asked in enumerate(engine.rounds, start=1):
        start = states[number - 1].model
        for client, job in asked.items():
            assert same(job.message.model, start, backbone)
            if 1 < number <= local:
                assert same(job.message.model, engine.outcomes[number - 2][client].update.model, head)
                assert not same(job.message.model, start, head)
            else:
                assert same(job.message.model, start, head)


def test_a_client_that_was_absent_gets_the_head_it_sent_last() -> None:
    federation = federation_of(
        rule={"name": "celm", "warmup": 6},
        split={"name": "iid", "clients": 4},
        run={"rounds": 6, "participation": 0.5},
    )
    engine = Recording(federation)
    states, _ = play_all(federation, engine)
    last: dict[str, StateDict] = {}
    again = 0
    for number, asked in enumerate(engine.rounds, start=1):
        for client, job in asked.items():
            expected = last.get(client, states[number - 1].model)
            assert same(job.message.model, expected, federation.context.head)
            again += client in last
        last |= {client: outcome.update.model for client, outcome in engine.outcomes[-1 + number].items()}
    assert again


@dataclass(frozen=True)
class ScaleHead(Attack):
    """Sends its head many times as large."""

    head: tuple[str, ...] = ()

    def poison(self, context: AttackContext) -> StateDict:
        return {name: 1000 * t if name in self.head else t for name, t in context.trained_model.items()}


def test_an_attacker_goes_on_from_the_head_it_trained_so_that_scaling_does_not_compound() -> None:
    federation = federation_of(rule={"name": "celm", "warmup": 4})
    head = federation.context.head
    federation = replace(federation, attacks={"client-1": ScaleHead(client="client-1", head=head)})
    engine = Recording(federation)
    states, records = play_all(federation, engine)
    for number in range(2, 5):
        trained = engine.outcomes[number - 2]["client-1"].update.model
        assert same(engine.rounds[number - 1]["client-1"].message.model, trained, head)
        sent = states[number - 1].server.local_heads.get("client-1")
        assert sent is None or all(torch.equal(sent[name], 1000 * trained[name]) for name in head)
    assert not any(record["excluded"] for record in records)


# --- participation ------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 1), st.integers(0, 999), st.integers(1, 60))
def test_each_round_has_its_fraction_of_clients_whatever_came_before(
    fraction: float, seed: int, number: int
) -> None:
    base = SHARED
    clients = tuple(f"client-{i}" for i in range(11))
    run = base.experiment.run.model_copy(update={"participation": fraction})
    federation = replace(base, experiment=base.experiment.model_copy(update={"run": run}))
    federation = federation.with_context(clients=clients, seed=seed)
    found = select_clients(federation, number)
    assert len(found) == len(set(found)) == max(1, round(fraction * 11))
    assert found == sorted(found, key=clients.index)
    select_clients(federation, number + 1)
    assert select_clients(federation, number) == found


SHARED = federation_of()


def test_participants_differ_from_round_to_round_and_with_the_seed() -> None:
    run = {"rounds": 20, "participation": 0.5}
    federation = federation_of(split={"name": "iid", "clients": 10}, run=run)
    drawn = [tuple(select_clients(federation, number)) for number in range(1, 21)]
    assert len(set(drawn)) > 15
    assert {name for round in drawn for name in round} == set(federation.context.clients)
    other = federation.with_context(seed=43)
    assert drawn != [tuple(select_clients(other, number)) for number in range(1, 21)]


def test_the_record_names_the_clients_of_each_round() -> None:
    federation = federation_of(split={"name": "iid", "clients": 5}, run={"rounds": 4, "participation": 0.4})
    engine = Recording(federation)
    _, records = play_all(federation, engine)
    for record, asked in zip(records, engine.rounds, strict=True):
        assert record["clients"] == list(asked)
        assert len(asked) == 2
        assert list(record["weights"]) == list(asked)
        assert sum(record["weights"].values()) == pytest.approx(1)
        assert sum(record["client_weights"].values()) == pytest.approx(1)


# --- bad updates and empty clients --------------------------------------------------------------------------


def spoil(outcome: ClientResult, value: float = float("nan")) -> ClientResult:
    model = {name: tensor.clone() for name, tensor in outcome.update.model.items()}
    next(iter(model.values())).view(-1)[0] = value
    return replace(outcome, update=replace(outcome.update, model=model))


@pytest.mark.parametrize("rule", ["celm", "fedavg", "standalone"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_client_that_sends_no_numbers_is_left_out_by_name_and_the_round_goes_on(
    rule: str, value: float
) -> None:
    federation = federation_of(rule=rule, run={"rounds": 3})
    engine = Recording(
        federation,
        lambda job, done: spoil(done, value) if (job.client, job.round_number) == ("client-1", 2) else done,
    )
    states, records = play_all(federation, engine)
    assert [list(record["excluded"]) for record in records] == [[], ["client-1"], []]
    assert "1 of 256 values are not finite" in records[1]["excluded"]["client-1"]
    assert list(records[1]["weights"]) == ["client-0", "client-2"]
    assert list(records[2]["weights"]) == ["client-0", "client-1", "client-2"]
    assert all(torch.isfinite(tensor).all() for tensor in states[-1].model.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda model: {name: tensor for name, tensor in model.items() if name != "head.bias"},
        lambda model: {**model, "more": torch.zeros(1)},
        lambda model: {**model, "head.bias": torch.zeros(11)},
        lambda model: {**model, "head.bias": torch.zeros(10, dtype=torch.int64)},
    ],
)
def test_a_model_of_another_form_is_left_out(change: Callable[[StateDict], StateDict]) -> None:
    federation = federation_of(rule="fedavg", run={"rounds": 1})

    def tamper(job: ClientTask, done: ClientResult) -> ClientResult:
        if job.client != "client-0":
            return done
        return replace(done, update=replace(done.update, model=change(done.update.model)))

    _, records = play_all(federation, Recording(federation, tamper))
    assert list(records[0]["excluded"]) == ["client-0"]


@pytest.mark.parametrize("rule", ["celm", "fedavg", "standalone"])
def test_when_all_are_bad_the_global_model_stays_and_the_run_goes_on(rule: str) -> None:
    federation = federation_of(rule=rule, run={"rounds": 3})
    engine = Recording(federation, lambda job, done: spoil(done) if job.round_number != 2 else done)
    states, records = play_all(federation, engine)
    assert [len(record["excluded"]) for record in records] == [3, 0, 3]
    assert same(states[1].model, federation.initial_model, list(federation.initial_model))
    assert same(states[3].model, states[2].model, list(federation.initial_model))
    assert records[0]["client_weights"] is None
    assert records[2]["accuracy"] == records[1]["accuracy"]


def test_a_run_in_which_nobody_ever_sends_anything_usable_finishes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "celm.runs.runner.select_engine",
        lambda federation, _: Recording(federation, lambda job, done: spoil(done)),
    )
    run = celm.run(Experiment(split={"name": "iid", "clients": 2}, run={"rounds": 2}), tmp_path / "run")
    assert run.weights == {"client-0": 0.5, "client-1": 0.5}
    assert run.evidence is None
    assert run.probe_inputs() is None


def with_empty_clients(full: int, **tables: Any) -> tuple[Federation, list[str]]:
    """A federation of three clients without samples and `full` with some, and who is without."""
    split = {"name": "dirichlet", "alpha": 0.01, "clients": 1500}
    federation = federation_of(split=split, **tables)
    sizes = {name: sum(counts) for name, counts in federation.counts.items()}
    empty = [name for name, size in sizes.items() if not size][:3]
    others = [name for name, size in sizes.items() if size][:full]
    assert len(empty) == 3
    return federation.with_context(clients=tuple(natural_sorted([*empty, *others]))), empty


@pytest.mark.parametrize("rule", ["celm", "fedavg", "standalone"])
def test_clients_without_samples_take_part(rule: str) -> None:
    federation, empty = with_empty_clients(4, rule=rule, run={"rounds": 2})
    engine = Recording(federation)
    states, records = play_all(federation, engine)
    for client in empty:
        update = engine.outcomes[0][client].update
        assert (update.num_steps, update.num_examples) == (0, 0)
        assert same(update.model, federation.initial_model, list(federation.initial_model))
    assert not any(record["excluded"] for record in records)
    assert all(torch.isfinite(tensor).all() for tensor in states[-1].model.values())


def test_sizes_that_are_all_zero_weigh_the_same() -> None:
    federation, empty = with_empty_clients(0, rule={"name": "fedavg", "by_size": True}, run={"rounds": 1})
    _, records = play_all(federation, Recording(federation))
    assert records[0]["weights"] == pytest.approx(dict.fromkeys(empty, 1 / 3))


def test_evaluation_is_every_so_many_rounds_and_always_at_the_end() -> None:
    federation = federation_of(rule="fedavg", run={"rounds": 5, "evaluate_every": 2})
    _, records = play_all(federation, Recording(federation))
    assert ["accuracy" in record for record in records] == [False, True, False, True, True]


def test_the_rate_of_a_round_reaches_the_clients() -> None:
    federation = federation_of(
        rule="fedavg", run={"rounds": 4}, train={"lr": 0.1, "decay_at": [2], "decay": 0.5}
    )
    engine = Recording(federation)
    _, records = play_all(federation, engine)
    expected = [0.1, 0.1, 0.05, 0.05]
    assert [record["lr"] for record in records] == expected
    assert [asked["client-0"].lr for asked in engine.rounds] == expected
