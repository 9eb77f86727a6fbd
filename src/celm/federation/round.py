"""One round of a simulated federation: select, send, train, validate, aggregate, evaluate.

`run_round` is a function of the federation and its state. Everything that is kept between rounds is in the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from celm.base.randomness import derive_seed
from celm.federation.build import Federation
from celm.federation.client_trainer import Engine
from celm.federation.clients import AdversarialClients, Clients, ClientsState, HonestClients
from celm.federation.server import (
    ServerState,
    ServerStep,
    initial_server_state,
    make_messages,
    server_step,
    step_record,
    validate_updates,
)
from celm.metrics.accuracy import compute_accuracy, mean_accuracy
from celm.models.state_dict import StateDict
from celm.rules.messages import ServerMessage, Validation


@dataclass(frozen=True)
class FederationState:
    """A simulated federation between two rounds."""

    server: ServerState
    clients: ClientsState

    @property
    def round_number(self) -> int:
        """Number of finished rounds."""
        return self.server.round_number

    @property
    def model(self) -> StateDict:
        return self.server.model


@dataclass(frozen=True)
class RoundResult:
    state: FederationState
    record: dict[str, Any]
    """The line of the round in rounds.jsonl."""
    probe_inputs: Mapping[str, Tensor] | None
    """Client to the inputs `[K, *shape]` at which its probe ended."""
    server_seconds: float
    """Time of the server step. The record has no times, so that it repeats byte for byte."""


def initial_state(federation: Federation) -> FederationState:
    """Return the state before the first round."""
    clients = federation.context.clients
    server_state = initial_server_state(federation.server, federation.initial_model, clients)
    return FederationState(server_state, ClientsState())


def run_round(federation: Federation, state: FederationState, engine: Engine) -> RoundResult:
    """Run the next round."""
    server, run = federation.server, federation.experiment.run
    round_number = state.round_number + 1
    lr = federation.experiment.train.lr_at(round_number)

    selected = select_clients(federation, round_number)
    messages = make_messages(server, state.server, selected)
    clients = make_clients(federation, engine)
    updates, clients_state = clients.train(state.clients, messages, state.model, round_number, lr)
    usable, invalid = validate_updates(updates, state.model)
    validate_fn = (
        Validation(lambda models: engine.evaluate(models, "validation"), federation.trainer.differentiate)
        if run.validation
        else None
    )
    step = server_step(server, state.server, messages, usable, validate_fn, invalid)

    record = make_run_record(step, round_number, lr, selected)
    if round_number == federation.rounds or round_number % run.evaluate_every == 0:
        record |= evaluate(federation, step.state, engine)
    probe_inputs = step.result.probe_inputs if step.result else None
    return RoundResult(
        FederationState(step.state, clients_state), record, probe_inputs, sum(step.seconds.values())
    )


def make_run_record(
    step: ServerStep, round_number: int, lr: float, selected: Sequence[str]
) -> dict[str, Any]:
    """Return the line of the round in rounds.jsonl, without its evaluation."""
    return {
        "round": round_number,
        "lr": lr,
        "clients": list(selected),
        "excluded": dict(step.excluded),
        **step_record(step),
    }


def make_clients(federation: Federation, engine: Engine) -> Clients:
    """Return the clients of a federation, some of which may attack."""
    honest = HonestClients(engine)
    if not federation.attacks:
        return honest
    return AdversarialClients(
        honest,
        federation.attacks,
        federation.context,
        federation.trainer.client_data,
        federation.rule.continues_from_upload,
    )


def select_clients(federation: Federation, round_number: int) -> list[str]:
    """Return the clients of a round, in client order. They depend on seed and round only."""
    clients = federation.context.clients
    fraction = federation.experiment.run.participation
    if fraction == 1:
        return list(clients)
    count = max(1, round(fraction * len(clients)))
    return sample_clients(clients, count, federation.context.seed, round_number)


def sample_clients(
    clients: Sequence[str], count: int, seed: int, round_number: int, attempt: int = 0
) -> list[str]:
    """Draw `count` clients and return them in the given order. Each attempt at a round draws anew."""
    if count >= len(clients):
        return list(clients)
    attempt_key = (attempt,) if attempt else ()
    rng = np.random.default_rng(derive_seed(seed, "participation", round_number, *attempt_key))
    return [clients[i] for i in sorted(rng.choice(len(clients), count, replace=False))]


def evaluate(federation: Federation, state: ServerState, engine: Engine) -> dict[str, Any]:
    """Return the accuracy of the global model on the test data.

    After the last round, and always with a personalised rule, also evaluate the model of each client.
    """
    personalised = federation.rule.personal
    rare_classes = federation.partition.rare_classes
    messages: dict[str, ServerMessage] = {}
    if personalised or state.round_number == federation.rounds:
        messages = make_messages(federation.server, state, federation.context.clients)
    # Clients often share one model: evaluate it once.
    models = {id(model): model for model in (state.model, *(message.model for message in messages.values()))}
    confusion = dict(zip(models, engine.evaluate(list(models.values())), strict=True))
    global_accuracy = compute_accuracy(confusion[id(state.model)], rare_classes)
    by_client = {
        name: compute_accuracy(confusion[id(message.model)], rare_classes)
        for name, message in messages.items()
    }
    result = mean_accuracy(list(by_client.values())) if personalised else global_accuracy
    return {
        "accuracy": result.accuracy,
        "balanced_accuracy": result.balanced_accuracy,
        "rare_class_accuracy": result.rare_class_accuracy,
        "per_class": list(result.per_class),
        "client_accuracy": {name: accuracy.accuracy for name, accuracy in by_client.items()} or None,
    }
