"""Every client trains alone.

    w_i(t) = train(w_i(t-1))        nothing is exchanged

This is the reference of fairness: the accuracy that a client reaches without the federation. Results are means over
the clients' own models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from celm.models.state_dict import StateDict
from celm.rules.messages import RoundData, ServerMessage
from celm.rules.rule import Rule, ServerContext, WeightingResult


@dataclass(frozen=True)
class StandaloneState:
    """The last model of every client seen."""

    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class Standalone(Rule[StandaloneState]):
    """No federation: each client trains alone, to compare fairness."""

    personal: ClassVar[bool] = True
    state_type: ClassVar[type] = StandaloneState

    @property
    def continues_from_upload(self) -> bool:
        return True

    def init(self, context: ServerContext) -> StandaloneState:
        return StandaloneState()

    def compute_weights(
        self, state: StandaloneState, context: ServerContext, round: RoundData
    ) -> WeightingResult[StandaloneState]:
        models = {**state.models, **{name: round.updates[name].model for name in round.clients}}
        uniform = dict.fromkeys(round.clients, 1 / len(round.clients))
        return WeightingResult(
            StandaloneState(models),
            aggregation_weights=uniform,
            client_weights=dict.fromkeys(models, 1 / len(models)),
        )

    def aggregate(
        self, state: StandaloneState, round: RoundData, result: WeightingResult[StandaloneState]
    ) -> StateDict:
        return round.global_model

    def message_for(self, state: StandaloneState, model: StateDict, client: str) -> ServerMessage:
        return ServerMessage(state.models.get(client, model))
