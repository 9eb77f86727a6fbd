"""Every client alone.

    w_i(t) = train(w_i(t-1))        nothing is exchanged

The reference that fairness needs: what a client reaches without the federation. Results are means over the
clients' own models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from celm.models.state import StateDict
from celm.rules.exchange import Delivery, Round
from celm.rules.rule import Facts, Rule, Weighing


@dataclass(frozen=True)
class Alone:
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class Standalone(Rule[Alone]):
    """No federation: every client trains alone (the reference of fairness)."""

    personal: ClassVar[bool] = True
    state_type: ClassVar[type] = Alone

    def init(self, federation: Facts) -> Alone:
        return Alone()

    def weigh(self, state: Alone, federation: Facts, round: Round) -> Weighing[Alone]:
        models = {**state.models, **{name: round.held(name) for name in round.clients}}
        equal = dict.fromkeys(round.clients, 1 / len(round.clients))
        return Weighing(Alone(models), weights=equal, standing=dict.fromkeys(models, 1 / len(models)))

    def merge(self, state: Alone, round: Round, weighing: Weighing[Alone]) -> StateDict:
        return round.start

    def deliver(self, state: Alone, model: StateDict, client: str) -> Delivery:
        return Delivery(state.models.get(client, model))
