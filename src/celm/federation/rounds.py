"""The round: updates -> weigh -> merge -> deliver.

`play` is a function of the federation and its state; all that is kept between rounds is in the state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from celm.attacks.attack import Attack, Upload
from celm.base.names import in_order
from celm.base.randomness import derive, generator
from celm.federation.assembly import Federation
from celm.federation.jobs import Engine, Job, Outcome
from celm.metrics.accuracy import accuracy_of, mean_accuracy
from celm.models.state import StateDict, conform, describe_mismatch
from celm.objectives.habits import Habits
from celm.rules.exchange import Delivery, Round, Update
from celm.rules.rule import Weighing


@dataclass(frozen=True)
class State:
    """A federation between two rounds."""

    number: int
    """Rounds done."""
    model: StateDict
    rule: Any
    observers: Mapping[str, Any] = field(default_factory=dict)
    """What each watching rule remembers."""
    server: Any = None
    """What the objective's part at the server remembers."""
    heads: Mapping[str, StateDict] = field(default_factory=dict)
    """The head each client sent last, while heads stay local."""
    kept: Mapping[str, StateDict] = field(default_factory=dict)
    """The head an attacker really trained, where it sent another one."""
    memories: Mapping[str, Any] = field(default_factory=dict)
    """What each client's objective remembers."""
    seen: Mapping[str, StateDict] = field(default_factory=dict)
    """What each attacker began its last round from."""


@dataclass(frozen=True)
class Played:
    """A round's new state, its line in the record, and the inputs its probes ended at."""

    state: State
    record: dict[str, Any]
    inputs: Mapping[str, Tensor] | None
    server_seconds: float
    """What filtering, weighing and merging took, watching rules included; no part of the record, which repeats."""


def begin(federation: Federation) -> State:
    facts, server = federation.facts, federation.server
    return State(
        0,
        federation.initial,
        federation.rule.init(facts),
        observers={name: rule.init(facts) for name, rule in federation.observers.items()},
        server=server.init(federation.initial) if server else None,
    )


def play(federation: Federation, state: State, engine: Engine) -> Played:
    number = state.number + 1
    rate = federation.experiment.train.rate(number)
    present = participants(federation, number)
    sent = deliveries(federation, state, present, number)
    outcomes = train(federation, state, engine, sent, number, rate)
    updates = {name: answer(federation, state, outcomes[name], sent[name], name, number) for name in present}
    excluded = {name: reason for name in present if (reason := flaw(updates[name], state.model))}
    usable = {
        name: replace(update, model=conform(update.model, state.model))
        for name, update in updates.items()
        if name not in excluded
    }
    record: dict[str, Any] = {"round": number, "lr": rate, "clients": present, "excluded": excluded}

    after, inputs = state, None
    started = time.perf_counter()
    record |= {"weights": {}, "standing": None, "scores": None, "evidence": None, "diagnostics": {}}
    if usable:
        held_out = federation.experiment.run.validation
        round = Round(
            number,
            rate,
            start=state.model,
            delivered=sent,
            updates=usable,
            validate=(lambda models: engine.evaluate(models, "validation")) if held_out else None,
            average=federation.average,
            own={
                name: conform(outcomes[name].update.model, state.model)
                for name in usable
                if name in federation.attacks
            },
        )
        after, inputs = aggregate(federation, state, round, record)
    server_seconds = time.perf_counter() - started

    local = number < federation.local_heads and not federation.rule.settled(after.rule)
    state = replace(
        after,
        number=number,
        heads=local_heads(federation, state.heads, usable) if local else {},
        kept=kept_heads(federation, state.kept, outcomes) if local else {},
        memories={**state.memories, **{name: outcomes[name].memory for name in present}},
        seen={
            **state.seen,
            **{name: in_hand(state, sent[name], name) for name in present if name in federation.attacks},
        },
    )
    last = number == federation.rounds
    if last or number % federation.experiment.run.evaluate_every == 0:
        record |= evaluate(federation, state, engine, last)
    return Played(state, record, inputs, server_seconds)


def aggregate(
    federation: Federation, state: State, round: Round, record: dict[str, Any]
) -> tuple[State, Mapping[str, Tensor] | None]:
    """Filter, weigh, merge; let the observers watch. Also the inputs at which the rule's probes ended.

    Where nobody is left, the global model and all that is remembered stay as they are.
    """
    if federation.filter is not None:
        filtered = federation.filter.apply(round)
        round = filtered.round
        record["excluded"] |= filtered.excluded
        if not round.updates:
            return state, None
    weighing = federation.rule.weigh(state.rule, federation.facts, round)
    model = federation.rule.merge(state.rule, round, weighing)
    record |= weighed(weighing)
    watched = {
        name: observer.weigh(state.observers[name], federation.facts, round)
        for name, observer in federation.observers.items()
    }
    if watched:
        record["observed"] = {name: weighed(seen) for name, seen in watched.items()}
    server = state.server
    if federation.server is not None:
        server = federation.server.absorb(state.server, round, model, len(federation.facts.clients))
        model = federation.server.adjust(server, model)
    observers = {name: seen.state for name, seen in watched.items()}
    after = replace(state, model=model, rule=weighing.state, observers=observers, server=server)
    return after, weighing.inputs


def weighed(weighing: Weighing[Any]) -> dict[str, Any]:
    """What a rule made of the round, for the record."""
    return {
        "weights": ordered(weighing.weights),
        "standing": ordered(weighing.standing),
        "scores": ordered(weighing.scores),
        "evidence": ordered(weighing.evidence),
        "diagnostics": dict(weighing.diagnostics),
    }


def ordered(by_client: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if by_client is None else {name: by_client[name] for name in in_order(by_client)}


def participants(federation: Federation, number: int) -> list[str]:
    """Who takes part, in client order; a function of seed and round."""
    clients = federation.facts.clients
    fraction = federation.experiment.run.participation
    if fraction == 1:
        return list(clients)
    return drawn(clients, max(1, round(fraction * len(clients))), federation.facts.seed, number)


def drawn(clients: Sequence[str], count: int, seed: int, number: int, attempt: int = 0) -> list[str]:
    """`count` of the clients, in the order given; another attempt at the same round draws anew."""
    if count >= len(clients):
        return list(clients)
    again = (attempt,) if attempt else ()
    rng = np.random.default_rng(derive(seed, "participation", number, *again))
    return [clients[i] for i in sorted(rng.choice(len(clients), count, replace=False))]


def deliveries(
    federation: Federation, state: State, clients: Sequence[str], number: int
) -> dict[str, Delivery]:
    """What the server sends: what the rule says, with the client's own last head while heads stay local."""
    server = federation.server
    model = state.model if server is None else server.depart(state.server, state.model)
    extras = {} if server is None else server.extras(state.server)
    sent = {}
    for client in clients:
        delivery = federation.rule.deliver(state.rule, model, client)
        if extras:
            delivery = replace(delivery, extras={**delivery.extras, **extras})
        if client in state.heads:
            delivery = replace(delivery, model={**delivery.model, **state.heads[client]})
        sent[client] = delivery
    return sent


def train(
    federation: Federation,
    state: State,
    engine: Engine,
    sent: Mapping[str, Delivery],
    number: int,
    rate: float,
) -> dict[str, Outcome]:
    """Every present client's own outcome, before any dishonesty; who does not train keeps what it was sent."""
    jobs = []
    for name, delivery in sent.items():
        model = in_hand(state, delivery, name)
        attack = attack_of(federation, name, number)
        habits = attack.habits() if attack else Habits()
        job = Job(name, number, rate, replace(delivery, model=model), state.memories.get(name), habits)
        jobs.append(job)
    working = [job for job in jobs if trains(federation, job.client, number)]
    done = dict(zip((job.client for job in working), engine.work(working), strict=True))
    holdings = federation.workbench.holdings
    return {
        job.client: done.get(job.client)
        or Outcome(Update(job.delivery.model, steps=0, size=len(holdings[job.client].rows)), job.memory)
        for job in jobs
    }


def in_hand(state: State, sent: Delivery, client: str) -> StateDict:
    """What a client goes on from; an attacker that sent another head than its own has that one still."""
    return {**sent.model, **state.kept.get(client, {})}


def attack_of(federation: Federation, client: str, number: int) -> Attack | None:
    """The client's attack, where it has one and this is its time."""
    attack = federation.attacks.get(client)
    return attack if attack is not None and attack.goes_on(number) else None


def trains(federation: Federation, client: str, number: int) -> bool:
    attack = attack_of(federation, client, number)
    return attack is None or attack.trains(number, federation.rounds)


def answer(
    federation: Federation, state: State, outcome: Outcome, sent: Delivery, client: str, number: int
) -> Update:
    """What the client sends: its outcome, or what its attack makes of it."""
    attack = attack_of(federation, client, number)
    if attack is None:
        return outcome.update
    seed = federation.facts.seed
    upload = Upload(
        number,
        trained=outcome.update.model,
        delivered=in_hand(state, sent, client),
        before=state.seen.get(client),
        noise=generator(seed, "attack", number, client),
        federation=federation.facts,
        labels=federation.workbench.holdings[client].labels,
        global_model=state.model,
    )
    return replace(outcome.update, model=attack.upload(upload))


def flaw(update: Update, reference: StateDict) -> str | None:
    """Why an update cannot be used; clients are untrusted."""
    if update.size < 0 or update.steps < 0:
        return f"says it has {update.size} samples and took {update.steps} steps"
    return describe_mismatch(update.model, reference)


def local_heads(
    federation: Federation, heads: Mapping[str, StateDict], updates: Mapping[str, Update]
) -> dict[str, StateDict]:
    """The heads to send back next round."""
    names = federation.facts.head
    sent = {client: {name: update.model[name] for name in names} for client, update in updates.items()}
    return {**heads, **sent}


def kept_heads(
    federation: Federation, kept: Mapping[str, StateDict], outcomes: Mapping[str, Outcome]
) -> dict[str, StateDict]:
    names = federation.facts.head
    own = {
        client: {name: outcome.update.model[name] for name in names}
        for client, outcome in outcomes.items()
        if client in federation.attacks
    }
    return {**kept, **own}


def evaluate(federation: Federation, state: State, engine: Engine, last: bool) -> dict[str, Any]:
    """Accuracy of the global model; at the end, and for personal rules always, of each client's own too."""
    rare = federation.dealing.rare_classes
    models = {id(state.model): state.model}
    delivered: dict[str, Delivery] = {}
    if last or federation.rule.personal:
        delivered = deliveries(federation, state, federation.facts.clients, state.number + 1)
        models |= {id(delivery.model): delivery.model for delivery in delivered.values()}
    counts = dict(zip(models, engine.evaluate(list(models.values())), strict=True))
    shared = accuracy_of(counts[id(state.model)], rare)
    own = {name: accuracy_of(counts[id(delivery.model)], rare) for name, delivery in delivered.items()}
    result = mean_accuracy(list(own.values())) if federation.rule.personal else shared
    return {
        "accuracy": result.accuracy,
        "balanced_accuracy": result.balanced_accuracy,
        "rare_class_accuracy": result.rare_class_accuracy,
        "per_class": list(result.per_class),
        "client_accuracy": {name: accuracy.accuracy for name, accuracy in own.items()} if own else None,
    }
