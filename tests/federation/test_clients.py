"""Simulated clients: what an attacker really continues from, and what nobody else sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from celm.attacks.attack import Attack, AttackContext
from celm.federation.client_trainer import ClientData, ClientResult, ClientTask
from celm.federation.clients import (
    AdversarialClients,
    AttackerState,
    ClientsState,
    HonestClients,
    real_start_model,
)
from celm.models.state_dict import StateDict
from celm.rules.messages import ClientUpdate, ServerMessage
from celm.rules.rule import ServerContext

DATA = ClientData(torch.arange(4), torch.tensor([0, 0, 1, 1]))
CONTEXT = ServerContext(("honest", "liar"), 2, (1,), 5, 0, nn.Linear(1, 1), ("weight",))


def state(value: float, head: float = 0.0) -> StateDict:
    return {"body": torch.tensor([value]), "weight": torch.tensor([head])}


class AddOne:
    """An engine whose clients add 1 to every tensor."""

    def __init__(self) -> None:
        self.tasks: list[ClientTask] = []

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        self.tasks = list(tasks)
        return [
            ClientResult(
                ClientUpdate({name: tensor + 1 for name, tensor in task.message.model.items()}, 1, 4),
                client_state=f"state of {task.client}",
            )
            for task in tasks
        ]

    def evaluate(self, models: Sequence[StateDict], *_: object) -> list[torch.Tensor]:
        raise NotImplementedError

    def close(self) -> None: ...


@dataclass(frozen=True)
class TimesTen(Attack):
    """Uploads ten times its head."""

    def poison(self, context: AttackContext) -> StateDict:
        return {**context.trained_model, "weight": 10 * context.trained_model["weight"]}


@dataclass(frozen=True)
class Sleeper(Attack):
    """Does not train."""

    def trains_in(self, round_number: int, rounds: int) -> bool:
        return False


def clients_with(attack: Attack, continues_from_upload: bool = False) -> tuple[AdversarialClients, AddOne]:
    engine = AddOne()
    clients = AdversarialClients(
        HonestClients(engine),
        {"liar": attack},
        CONTEXT,
        {"liar": DATA, "honest": DATA},
        continues_from_upload,
    )
    return clients, engine


def messages(model: StateDict) -> dict[str, ServerMessage]:
    return {name: ServerMessage(model) for name in ("honest", "liar")}


def test_honest_clients_upload_what_they_trained_and_keep_their_objective_state() -> None:
    clients = HonestClients(AddOne())
    updates, after = clients.train(ClientsState({"absent": 1}), messages(state(1.0)), state(1.0), 1, 0.1)
    assert updates["liar"].model["body"].item() == 2.0
    assert after.objective_states == {"absent": 1, "honest": "state of honest", "liar": "state of liar"}
    assert after.attackers == {}


def test_only_the_upload_of_the_attacker_differs() -> None:
    clients, _ = clients_with(TimesTen(client="liar"))
    updates, after = clients.train(ClientsState(), messages(state(1.0, 1.0)), state(1.0), 1, 0.1)
    assert updates["honest"].model["weight"].item() == 2.0
    assert updates["liar"].model["weight"].item() == 20.0
    assert updates["liar"].model["body"].item() == 2.0
    assert set(after.attackers) == {"liar"}
    assert after.attackers["liar"].trained == {"weight": torch.tensor([2.0])}


def test_an_attacker_continues_from_the_head_it_trained_if_its_upload_comes_back() -> None:
    clients, engine = clients_with(TimesTen(client="liar"))
    updates, after = clients.train(ClientsState(), messages(state(1.0, 1.0)), state(1.0), 1, 0.1)
    returned = {**state(5.0), "weight": updates["liar"].model["weight"]}
    clients.train(after, {"liar": ServerMessage(returned)}, state(1.0), 2, 0.1)
    assert engine.tasks[0].message.model["weight"].item() == 2.0
    assert engine.tasks[0].message.model["body"].item() == 5.0


def test_an_attacker_loads_the_global_model_as_everybody_does() -> None:
    clients, engine = clients_with(TimesTen(client="liar"))
    _, after = clients.train(ClientsState(), messages(state(1.0, 1.0)), state(1.0), 1, 0.1)
    clients.train(after, messages(state(7.0, 8.0)), state(7.0), 2, 0.1)
    starts = [task.message.model["weight"].item() for task in engine.tasks]
    assert starts == [8.0, 8.0]


def test_if_the_rule_builds_on_uploads_what_was_falsified_is_taken_out_of_the_message() -> None:
    attacker = AttackerState(state(0.0), {"weight": torch.tensor([2.0])}, {"weight": torch.tensor([20.0])})
    # The server added 0.5 to the upload: the attacker adds it to what it trained.
    added = {"body": torch.tensor([4.0]), "weight": torch.tensor([20.5])}
    continued = real_start_model(added, attacker, continues_from_upload=True)
    assert continued["weight"].item() == 2.5
    assert continued["body"].item() == 4.0
    assert real_start_model(added, attacker, continues_from_upload=False)["weight"].item() == 20.5


def test_an_upload_that_is_not_finite_does_not_reach_the_attackers_own_model() -> None:
    attacker = AttackerState(
        state(0.0), {"weight": torch.tensor([2.0])}, {"weight": torch.tensor([torch.inf])}
    )
    message = state(1.0, 3.0)
    assert real_start_model(message, attacker, continues_from_upload=True)["weight"].item() == 3.0


def test_a_client_that_does_not_train_returns_what_it_received_and_takes_no_steps() -> None:
    clients, engine = clients_with(Sleeper(client="liar"))
    updates, _ = clients.train(ClientsState(), messages(state(3.0)), state(3.0), 1, 0.1)
    assert [task.client for task in engine.tasks] == ["honest"]
    assert updates["liar"].model["body"].item() == 3.0
    assert (updates["liar"].num_steps, updates["liar"].num_examples) == (0, 4)
    assert list(updates) == ["honest", "liar"]


def test_before_its_first_round_an_attacker_is_honest() -> None:
    clients, _ = clients_with(replace(TimesTen(client="liar"), first_round=2))
    updates, after = clients.train(ClientsState(), messages(state(1.0, 1.0)), state(1.0), 1, 0.1)
    assert updates["liar"].model["weight"].item() == 2.0
    assert after.attackers["liar"].trained == {}
