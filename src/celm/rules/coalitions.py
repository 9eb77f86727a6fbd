"""The game of a round: what the model of some of its clients is worth, and what each client adds to it.

    v(S) = utility on validation data of  (1/|S|) Σ_{i∈S} w_i        v(∅) = utility of the round's start model

The average is the round's own (`Round.average`), with equal weights. A rule on this base says only how it values
the clients of one game, φ_i; over rounds it keeps

    V_i(t) = λ V_i(t-1) + φ_i(t)        λ = `decay`, for the clients present; those absent keep theirs

and a client first seen later starts from the mean of those known. Values may be negative. Weights are V on the
simplex by a clamp, max(0, V_i) / Σ_j max(0, V_j), over the clients present; where nothing is positive all count
the same. Scores are φ clamped alike.

Reference: Song, Tong & Wei, Profit Allocation for Federated Learning, IEEE Big Data 2019 (the MR index).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from celm.base.errors import CelmError
from celm.base.names import in_order
from celm.base.randomness import generator
from celm.method.weights import normalised
from celm.metrics.accuracy import accuracy_of
from celm.models.state import StateDict
from celm.rules.exchange import Round
from celm.rules.rule import Facts, Needs, Rule, Weighing

Utility = Callable[[Sequence[int]], Sequence[float]]
"""Coalitions to what they are worth; bit i of a coalition says whether player i is in it."""

ROUNDING = 1e-12
"""Differences of utilities up to this are zero: a client must not get all the weight by rounding alone."""


class Game:
    """Players 0 .. N-1 and a utility, of which every coalition is asked once, `batch` at a time."""

    def __init__(self, players: int, utility: Utility, batch: int = 64) -> None:
        self.players = players
        self.everyone = (1 << players) - 1
        self.utility = utility
        self.batch = batch
        self.known: dict[int, float] = {}

    def values(self, coalitions: Sequence[int]) -> list[float]:
        missing = [coalition for coalition in dict.fromkeys(coalitions) if coalition not in self.known]
        for begin in range(0, len(missing), self.batch):
            asked = missing[begin : begin + self.batch]
            self.known.update(zip(asked, self.utility(asked), strict=True))
        return [self.known[coalition] for coalition in coalitions]

    def ends(self) -> tuple[float, float]:
        """v(∅) and v(N)."""
        nobody, everyone = self.values([0, self.everyone])
        return nobody, everyone

    @property
    def evaluations(self) -> int:
        return len(self.known)


def marginals(game: Game, orders: Sequence[Sequence[int]], tolerance: float) -> NDArray[np.float64]:
    """What each player adds when it joins, `[P, N]`, along P orders of the N players.

    An order ends where its players are worth v(N) but for less than `tolerance`; those yet to come add 0. The
    orders are walked side by side, so that a step along all of them is one question.
    """
    nobody, everyone = game.ends()
    added = np.zeros((len(orders), game.players))
    coalitions, worth = [0] * len(orders), [nobody] * len(orders)
    for step in range(game.players):
        walking = [row for row in range(len(orders)) if abs(everyone - worth[row]) >= tolerance - ROUNDING]
        for row in walking:
            coalitions[row] |= 1 << orders[row][step]
        for row, value in zip(walking, game.values([coalitions[row] for row in walking]), strict=True):
            added[row, orders[row][step]] = value - worth[row]
            worth[row] = value
    return added


def round_game(round: Round, names: Sequence[str], utility: str) -> Game:
    """The game of `names`, the clients of the round, in this order."""
    validate = round.validate
    if validate is None:
        raise CelmError(
            "the rule judges models on validation data, and there is none", "set 'run.validation'"
        )
    models = [round.updates[name].model for name in names]

    def worth(coalitions: Sequence[int]) -> list[float]:
        judged: list[StateDict] = []
        for coalition in coalitions:
            members = [model for i, model in enumerate(models) if coalition >> i & 1]
            equal = [1 / len(members)] * len(members) if members else []
            judged.append(round.average(members, equal) if members else round.start)
        return [float(getattr(accuracy_of(counts), utility)) for counts in validate(judged)]

    # As many models at a time as keep the workers busy, fewer where they are large.
    size = sum(tensor.nbytes for tensor in round.start.values())
    return Game(len(models), worth, batch=min(64, max(1, 2**30 // max(1, size))))


def clamped(values: Mapping[str, float]) -> dict[str, float]:
    """The positive part on the simplex; uniform where nothing is positive.

    >>> clamped({"a": 3.0, "b": -1.0, "c": 1.0})
    {'a': 0.75, 'b': 0.0, 'c': 0.25}
    """
    return normalised({name: value if value > ROUNDING else 0.0 for name, value in values.items()})


@dataclass(frozen=True)
class Values:
    """V: the value of every client seen so far, added up over rounds, in client order."""

    of: Mapping[str, float] = field(default_factory=dict)

    def knowing(self, clients: Sequence[str]) -> Values:
        """The same with newcomers added at the mean; 0 where nobody is known."""
        mean = math.fsum(self.of.values()) / max(1, len(self.of))
        known = {**dict.fromkeys(clients, mean), **self.of}
        return Values({name: known[name] for name in in_order(known)})

    def plus(self, values: Mapping[str, float], decay: float) -> Values:
        known = self.knowing(list(values)).of
        return Values(
            {name: decay * old + values[name] if name in values else old for name, old in known.items()}
        )


@dataclass(frozen=True)
class Estimate:
    values: list[float] | None
    """φ, by player; None where the round was not worth an estimate, which leaves V as it was."""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    errors: list[float] | None = None
    """Standard errors of `values`, where they were sampled."""


@dataclass(frozen=True)
class CoalitionRule(Rule[Values]):
    """Base of the rules that value clients by what coalitions of them are worth."""

    needs: ClassVar[Needs] = Needs(validation=True)
    state_type: ClassVar[type] = Values

    # Said in `Field`, as pydantic does not read the docstrings of inherited attributes.
    utility: Annotated[
        Literal["accuracy", "balanced_accuracy"],
        Field(description="What a model is worth on the validation data."),
    ] = "accuracy"
    decay: Annotated[
        float,
        Field(
            ge=0, le=1, description="λ: how much of its value so far a client takes into each round it is in."
        ),
    ] = 1.0

    @abstractmethod
    def estimate(self, game: Game, draw: torch.Generator) -> Estimate: ...

    def init(self, federation: Facts) -> Values:
        return Values()

    def weigh(self, state: Values, federation: Facts, round: Round) -> Weighing[Values]:
        names = in_order(round.clients)
        game = round_game(round, names, self.utility)
        found = self.estimate(game, generator(federation.seed, "coalitions", round.number))
        nobody, everyone = game.ends()
        value = dict(zip(names, found.values or [0.0] * len(names), strict=True))
        state = state.knowing(names) if found.values is None else state.plus(value, self.decay)
        diagnostics = {"values": value, "gain": everyone - nobody, "evaluations": game.evaluations}
        if found.errors is not None:
            diagnostics["standard_errors"] = dict(zip(names, found.errors, strict=True))
        return Weighing(
            state,
            weights=clamped({name: state.of[name] for name in names}),
            standing=clamped(state.of),
            scores=None if found.values is None else clamped(value),
            diagnostics={**diagnostics, **found.diagnostics},
        )
