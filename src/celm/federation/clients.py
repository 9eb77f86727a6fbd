"""Simulated clients: honest ones, and a wrapper that lets some of them attack.

The server and the rules see uploads only. Only `AdversarialClients` tracks the models that attackers really trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from celm.attacks.attack import Attack, AttackContext, remove_poison
from celm.base.randomness import make_generator
from celm.federation.client_trainer import ClientData, ClientResult, ClientTask, Engine
from celm.models.state_dict import StateDict
from celm.rules.messages import ClientUpdate, ServerMessage
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class AttackerState:
    """State of an attacking client after its last round."""

    start_model: StateDict
    """The model from which it started."""
    trained: StateDict = field(default_factory=dict)
    """The trained tensors that it falsified before the upload."""
    uploaded: StateDict = field(default_factory=dict)
    """The falsified tensors that it uploaded."""
    earlier_models: tuple[StateDict, ...] = ()
    """The models from which it started before, the latest at the end; only if its attack remembers several."""

    @property
    def start_models(self) -> tuple[StateDict, ...]:
        """All start models that it remembers, the latest at the end."""
        return (*self.earlier_models, self.start_model)


@dataclass(frozen=True)
class ClientsState:
    """State of all clients between rounds."""

    objective_states: Mapping[str, Any] = field(default_factory=dict)
    """Client to the state of its objective."""
    attackers: Mapping[str, AttackerState] = field(default_factory=dict)


Uploads = tuple[dict[str, ClientUpdate], ClientsState]
"""The update of each client, and the clients' next state."""


class Clients(Protocol):
    def train(
        self,
        state: ClientsState,
        messages: Mapping[str, ServerMessage],
        global_model: StateDict,
        round_number: int,
        lr: float,
    ) -> Uploads:
        """Train the clients that received `messages` and return their uploads in that order."""


@dataclass(frozen=True)
class HonestClients:
    """Clients that train on their data and upload the trained model."""

    engine: Engine

    def train(
        self,
        state: ClientsState,
        messages: Mapping[str, ServerMessage],
        global_model: StateDict,
        round_number: int,
        lr: float,
    ) -> Uploads:
        results = self.run_tasks(make_tasks(state, messages, round_number, lr))
        updates = {name: result.update for name, result in results.items()}
        return updates, replace(state, objective_states=_next_objective_states(state, results))

    def run_tasks(self, tasks: Mapping[str, ClientTask]) -> dict[str, ClientResult]:
        """Run the tasks on the engine; results are in the order of the tasks."""
        return dict(zip(tasks, self.engine.train(list(tasks.values())), strict=True))


@dataclass(frozen=True)
class AdversarialClients:
    """Honest clients, some of which attack."""

    honest: HonestClients
    attacks: Mapping[str, Attack]
    context: ServerContext
    client_data: Mapping[str, ClientData]
    continues_from_upload: bool
    """Whether the rule builds a client's next model on that client's upload."""

    def train(
        self,
        state: ClientsState,
        messages: Mapping[str, ServerMessage],
        global_model: StateDict,
        round_number: int,
        lr: float,
    ) -> Uploads:
        active = {
            name: attack
            for name, attack in self.attacks.items()
            if name in messages and attack.is_active(round_number)
        }
        tasks = {
            name: self._with_attack(task, state.attackers.get(name), active.get(name))
            for name, task in make_tasks(state, messages, round_number, lr).items()
        }
        idle = {
            name for name, attack in active.items() if not attack.trains_in(round_number, self.context.rounds)
        }
        trained = self.honest.run_tasks({name: task for name, task in tasks.items() if name not in idle})
        results = {name: trained.get(name) or self._untrained(task) for name, task in tasks.items()}
        updates = {name: result.update for name, result in results.items()}
        for name, attack in active.items():
            attack_context = AttackContext(
                round_number,
                trained_model=results[name].update.model,
                received_model=tasks[name].message.model,
                previous_received_model=state.attackers[name].start_model
                if name in state.attackers
                else None,
                generator=make_generator(self.context.seed, "attack", round_number, name),
                server_context=self.context,
                labels=self.client_data[name].labels,
                global_model=global_model,
                earlier_models=state.attackers[name].start_models if name in state.attackers else (),
            )
            updates[name] = replace(updates[name], model=attack.poison(attack_context))
        attackers = {
            name: replace(
                _make_attacker_state(
                    tasks[name].message.model, results[name].update.model, updates[name].model
                ),
                earlier_models=_remember(state.attackers.get(name), self.attacks[name].remembered_models - 1),
            )
            for name in tasks
            if name in self.attacks
        }
        objective_states = _next_objective_states(state, results)
        return updates, ClientsState(objective_states, {**state.attackers, **attackers})

    def _with_attack(
        self, task: ClientTask, attacker: AttackerState | None, attack: Attack | None
    ) -> ClientTask:
        """Return the task as an attacker carries it out: from its real model, with its own training settings."""
        if attacker is not None and attacker.trained:
            model = real_start_model(task.message.model, attacker, self.continues_from_upload)
            task = replace(task, message=replace(task.message, model=model))
        return replace(task, overrides=attack.training_overrides()) if attack else task

    def _untrained(self, task: ClientTask) -> ClientResult:
        """Return the result of a client that does not train."""
        num_examples = len(self.client_data[task.client].rows)
        return ClientResult(
            ClientUpdate(task.message.model, num_steps=0, num_examples=num_examples), task.client_state
        )


def make_tasks(
    state: ClientsState, messages: Mapping[str, ServerMessage], round_number: int, lr: float
) -> dict[str, ClientTask]:
    """Return the training task of each client that received a message."""
    return {
        name: ClientTask(name, round_number, lr, message, state.objective_states.get(name))
        for name, message in messages.items()
    }


def real_start_model(message: StateDict, attacker: AttackerState, continues_from_upload: bool) -> StateDict:
    """Return the model from which an attacker really continues, given the model that it was sent.

    A tensor that comes back as it was uploaded (a local head) is replaced by the one that the attacker trained. If the
    rule builds on uploads, the falsification is removed from the message (`remove_poison`).
    """
    model = dict(message)
    if continues_from_upload and all(bool(tensor.isfinite().all()) for tensor in attacker.uploaded.values()):
        falsified = {name: message[name] for name in attacker.trained}
        model |= remove_poison(falsified, attacker.trained, attacker.uploaded)
    returned = [name for name, tensor in attacker.uploaded.items() if torch.equal(message[name], tensor)]
    return model | {name: attacker.trained[name] for name in returned}


def _make_attacker_state(start_model: StateDict, trained: StateDict, uploaded: StateDict) -> AttackerState:
    """Return the state for an attacker's next round. Of `trained` and `uploaded`, it has the falsified tensors only."""
    if uploaded is trained:
        return AttackerState(start_model)
    falsified = [
        name
        for name, tensor in trained.items()
        if name in uploaded
        and uploaded[name].shape == tensor.shape
        and not torch.equal(tensor, uploaded[name])
    ]
    return AttackerState(
        start_model,
        {name: trained[name] for name in falsified},
        {name: uploaded[name] for name in falsified},
    )


def _remember(attacker: AttackerState | None, count: int) -> tuple[StateDict, ...]:
    """Return the last `count` start models."""
    return attacker.start_models[-count:] if attacker is not None and count else ()


def _next_objective_states(state: ClientsState, results: Mapping[str, ClientResult]) -> dict[str, Any]:
    new_states = {name: result.client_state for name, result in results.items()}
    return {**state.objective_states, **new_states}
