"""The server step, for the simulator and for live federations.

    filter -> compute weights -> aggregate -> objective hook -> finite check -> next local heads

`server_step` is a pure function: it returns the next state and everything that a record needs. The simulator calls it
from `celm.federation.round`, the Flower strategy from `aggregate_train`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from celm.base.client_order import natural_sorted
from celm.base.stage_timer import StageTimer
from celm.federation.earnings import Earnings, without_undelivered
from celm.federation.flags import Flags, round_flags, unchanged_clients
from celm.models.averaging import weighted_mean
from celm.models.state_dict import StateDict, cast_like, describe_mismatch
from celm.objectives.objective import ServerHook
from celm.rules.messages import Aggregator, ClientUpdate, RoundData, ServerMessage, ValidateFn
from celm.rules.robust.filter import Filter, FilterResult
from celm.rules.rule import AnyRule, ServerContext, WeightingResult


@dataclass(frozen=True)
class Server:
    """The parts of a server that stay the same in all rounds."""

    rule: AnyRule
    context: ServerContext
    observers: Mapping[str, AnyRule] = field(default_factory=dict)
    """Rules that compute weights without being used for aggregation."""
    filter: Filter | None = None
    aggregator: Aggregator = weighted_mean
    hook: ServerHook[Any] | None = None
    """The server side of the objective."""
    local_head_rounds: int = 0
    """In rounds 1 to this number, clients keep their own classifier head."""

    def state_field_types(self) -> dict[str, Any]:
        """Return the types of the fields of `ServerState` that depend on the rules and the hook."""
        return {
            "rule": self.rule.state_type,
            "observers": {name: rule.state_type for name, rule in self.observers.items()},
            "hook": self.hook.state_type if self.hook else None,
        }


@dataclass(frozen=True)
class ServerState:
    """What the server keeps between two rounds."""

    round_number: int
    """Number of finished rounds."""
    model: StateDict
    clients: tuple[str, ...]
    """All clients seen so far, in client order."""
    rule: Any
    observers: Mapping[str, Any] = field(default_factory=dict)
    hook: Any = None
    local_heads: Mapping[str, StateDict] = field(default_factory=dict)
    """The head that each client uploaded last, while clients keep their own heads."""
    earnings: Earnings = field(default_factory=Earnings)


@dataclass(frozen=True)
class ServerStep:
    """The outcome of one server step."""

    state: ServerState
    result: WeightingResult[Any] | None
    """None if no update was left to aggregate; the global model and the rule's state are then unchanged."""
    clients: tuple[str, ...] = ()
    """Clients whose updates were aggregated."""
    observed: Mapping[str, WeightingResult[Any]] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Client to the reason why its update was not used."""
    clip_factors: Mapping[str, float] = field(default_factory=dict)
    """Client to the factor by which the filter shortened its update."""
    flags: Flags = field(default_factory=dict)
    rejected_merge: str | None = None
    """Why the aggregated model was refused; the global model is then unchanged."""
    seconds: Mapping[str, float] = field(default_factory=dict)


def initial_server_state(server: Server, model: StateDict, clients: Sequence[str]) -> ServerState:
    """Return the state before the first round."""
    context = replace(server.context, clients=tuple(clients))
    return ServerState(
        round_number=0,
        model=model,
        clients=tuple(clients),
        rule=server.rule.init(context),
        observers={name: rule.init(context) for name, rule in server.observers.items()},
        hook=server.hook.init(model) if server.hook else None,
    )


def make_messages(server: Server, state: ServerState, clients: Sequence[str]) -> dict[str, ServerMessage]:
    """Return the message to each client: the rule's model, with the client's own head while heads are local."""
    hook = server.hook
    model = hook.broadcast_model(state.hook, state.model) if hook else state.model
    extra_tensors = hook.extra_tensors(state.hook) if hook else {}
    messages = {}
    for client in clients:
        message = server.rule.message_for(state.rule, model, client)
        if extra_tensors:
            message = replace(message, extra_tensors={**message.extra_tensors, **extra_tensors})
        if client in state.local_heads:
            message = replace(message, model={**message.model, **state.local_heads[client]})
        messages[client] = message
    return messages


def validate_updates(
    updates: Mapping[str, ClientUpdate], reference: StateDict
) -> tuple[dict[str, ClientUpdate], dict[str, str]]:
    """Split updates into usable ones, with the dtypes of `reference`, and reasons to exclude the others."""
    excluded = {
        name: reason for name, update in updates.items() if (reason := _update_error(update, reference))
    }
    usable = {
        name: replace(update, model=cast_like(update.model, reference))
        for name, update in updates.items()
        if name not in excluded
    }
    return usable, excluded


def _update_error(update: ClientUpdate, reference: StateDict) -> str | None:
    if update.num_examples < 0 or update.num_steps < 0:
        return f"reports {update.num_examples} samples and {update.num_steps} steps"
    return describe_mismatch(update.model, reference)


def server_step(
    server: Server,
    state: ServerState,
    messages: Mapping[str, ServerMessage],
    updates: Mapping[str, ClientUpdate],
    validate_fn: ValidateFn | None = None,
    invalid: Mapping[str, str] | None = None,
) -> ServerStep:
    """Aggregate the usable `updates` of one round. `invalid` has the reasons why other updates are not usable."""
    timer = StageTimer()
    round_number = state.round_number + 1
    context = replace(server.context, clients=state.clients)
    round = RoundData(round_number, state.model, messages, updates, validate_fn, server.aggregator)

    with timer.timed("filter"):
        filtered = server.filter.apply(round) if server.filter and updates else FilterResult(round)
    round = filtered.round
    excluded = {**(invalid or {}), **filtered.excluded}
    unchanged = unchanged_clients(messages, updates)
    if not round.updates:
        local_heads = _next_local_heads(server, state, state.rule, updates)
        earnings = state.earnings.record({}, delivered=())
        next_state = replace(state, round_number=round_number, local_heads=local_heads, earnings=earnings)
        flags = round_flags(unchanged, {}, excluded, filtered.clip_factors)
        return ServerStep(next_state, None, excluded=excluded, flags=flags, seconds=timer.seconds)

    with timer.timed("weigh"):
        result = server.rule.compute_weights(state.rule, context, round)
    with timer.timed("merge"):
        model = server.rule.aggregate(state.rule, round, result)
    with timer.timed("observe"):
        observed = {
            name: observer.compute_weights(state.observers[name], context, round)
            for name, observer in server.observers.items()
        }
    flags = round_flags(unchanged, result.diagnostics, excluded, filtered.clip_factors)
    contributions = result.client_weights if result.contributions is None else result.contributions
    earnings = state.earnings.record(
        {**dict.fromkeys(state.clients, 0.0), **contributions},
        delivered=updates,
        unpaid=[*unchanged, *filtered.excluded, *(result.diagnostics.get("idle") or ())],
    )
    client_weights = without_undelivered(result.client_weights, earnings.delivered)
    result = replace(result, client_weights=client_weights)
    hook_state = state.hook
    if server.hook is not None:
        hook_state = server.hook.update_state(state.hook, round, model, len(state.clients))
        model = server.hook.postprocess(hook_state, model)
    rejected_merge = merge_error(model, state.model)
    if rejected_merge:
        model, hook_state = state.model, state.hook

    next_state = ServerState(
        round_number=round_number,
        model=model,
        clients=state.clients,
        rule=result.state,
        observers={name: observation.state for name, observation in observed.items()},
        hook=hook_state,
        local_heads=_next_local_heads(server, state, result.state, updates),
        earnings=earnings,
    )
    return ServerStep(
        next_state,
        result,
        tuple(round.clients),
        observed,
        excluded,
        filtered.clip_factors,
        flags,
        rejected_merge,
        timer.seconds,
    )


def merge_error(model: StateDict, reference: StateDict) -> str | None:
    """Return why an aggregated model is refused, None if it is usable.

    The sum of finite numbers can overflow. No client could train from such a model.
    """
    return describe_mismatch(model, reference)


def _next_local_heads(
    server: Server, state: ServerState, rule_state: Any, updates: Mapping[str, ClientUpdate]
) -> dict[str, StateDict]:
    """Return the heads to send back in the next round; none once heads are shared."""
    if state.round_number + 1 >= server.local_head_rounds or server.rule.warmup_over(rule_state):
        return {}
    uploaded = {
        client: {name: update.model[name] for name in server.context.head}
        for client, update in updates.items()
    }
    return {**state.local_heads, **uploaded}


def step_record(step: ServerStep) -> dict[str, Any]:
    """Return the part of a round's record that the server step determines."""
    record: dict[str, Any] = {
        "weights": {},
        "client_weights": None,
        "scores": None,
        "evidence": None,
        "diagnostics": {},
    }
    if step.result is not None:
        record = _weighting_record(step.result)
    record["earned"] = step.state.earnings.earned
    record["flags"] = step.flags
    record["clipped"] = _sort_clients(step.clip_factors)
    if step.observed:
        record["observed"] = {name: _weighting_record(result) for name, result in step.observed.items()}
    if step.rejected_merge:
        record["merge"] = step.rejected_merge
    return record


def _weighting_record(result: WeightingResult[Any]) -> dict[str, Any]:
    return {
        "weights": _sort_clients(result.aggregation_weights),
        "client_weights": _sort_clients(result.client_weights),
        "scores": _sort_clients(result.scores),
        "evidence": _sort_clients(result.evidence),
        "diagnostics": dict(result.diagnostics),
    }


def _sort_clients(by_client: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if by_client is None else {name: by_client[name] for name in natural_sorted(by_client)}
