"""The game of a round: the utility of models averaged over coalitions of its clients, and the value of each client.

    v(S) = utility on validation data of  (1/|S|) Σ_{i∈S} w_i        v(∅) = utility of the round's start model

The average is the round's own (`RoundData.average`), with equal weights. A rule on this base implements only φ_i, the
values of one game. Over rounds, values are accumulated:

    V_i(t) = λ V_i(t-1) + φ_i(t)        λ = `decay`, for the present clients; V of absent clients does not change

A client first seen later starts from the mean V. Values may be negative. Weights are the positive parts,
max(0, V_i) / Σ_j max(0, V_j), over the present clients, and equal if no value is positive. Scores are the same of φ.

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

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.base.randomness import make_generator
from celm.core.weights import normalise_weights
from celm.metrics.accuracy import compute_accuracy
from celm.models.state_dict import StateDict
from celm.rules.messages import RoundData
from celm.rules.rule import Requirements, Rule, ServerContext, State, WeightingResult

Utility = Callable[[Sequence[int]], Sequence[float]]
"""Maps coalitions to their utilities; player i is in a coalition if bit i is set."""

UTILITY_EPS = 1e-12
"""Smaller differences of utilities count as zero, so that rounding alone cannot give a client all the weight."""


class Game:
    """Players 0 .. N-1 and a utility, evaluated once per coalition, `batch_size` at a time."""

    def __init__(self, players: int, utility: Utility, batch_size: int = 64) -> None:
        self.players = players
        self.grand_coalition = (1 << players) - 1
        self.utility = utility
        self.batch_size = batch_size
        self.cache: dict[int, float] = {}

    def values(self, coalitions: Sequence[int]) -> list[float]:
        """Return the utilities of coalitions."""
        missing = [coalition for coalition in dict.fromkeys(coalitions) if coalition not in self.cache]
        for start in range(0, len(missing), self.batch_size):
            batch = missing[start : start + self.batch_size]
            self.cache.update(zip(batch, self.utility(batch), strict=True))
        return [self.cache[coalition] for coalition in coalitions]

    def empty_and_grand(self) -> tuple[float, float]:
        """Return v(∅) and v(N)."""
        empty_value, grand_value = self.values([0, self.grand_coalition])
        return empty_value, grand_value

    @property
    def evaluations(self) -> int:
        """Number of evaluated coalitions."""
        return len(self.cache)


def marginal_contributions(
    game: Game, orders: Sequence[Sequence[int]], tolerance: float
) -> NDArray[np.float64]:
    """Return the marginal contribution `[P, N]` of each player along P orders of the N players.

    An order ends as soon as its prefix is within `tolerance` of v(N); the remaining players add 0. All orders advance
    together, so that one step along all of them is one batch of evaluations.
    """
    empty_value, grand_value = game.empty_and_grand()
    contributions = np.zeros((len(orders), game.players))
    coalitions, values = [0] * len(orders), [empty_value] * len(orders)
    for step in range(game.players):
        open_rows = [
            row for row in range(len(orders)) if abs(grand_value - values[row]) >= tolerance - UTILITY_EPS
        ]
        for row in open_rows:
            coalitions[row] |= 1 << orders[row][step]
        for row, value in zip(open_rows, game.values([coalitions[row] for row in open_rows]), strict=True):
            contributions[row, orders[row][step]] = value - values[row]
            values[row] = value
    return contributions


def make_round_game(round: RoundData, names: Sequence[str], utility: str) -> Game:
    """Return the game of a round, with the clients `names` as players in this order."""
    validate = round.validate
    if validate is None:
        raise CelmError("the rule needs validation data, and the federation has none", "set 'run.validation'")
    models = [round.updates[name].model for name in names]

    def evaluate_coalitions(coalitions: Sequence[int]) -> list[float]:
        models_to_evaluate: list[StateDict] = []
        for coalition in coalitions:
            members = [model for i, model in enumerate(models) if coalition >> i & 1]
            equal_weights = [1 / len(members)] * len(members) if members else []
            models_to_evaluate.append(
                round.average(members, equal_weights) if members else round.global_model
            )
        return [float(getattr(compute_accuracy(counts), utility)) for counts in validate(models_to_evaluate)]

    # Enough models at a time to keep all workers busy, fewer if they are large.
    model_bytes = sum(tensor.nbytes for tensor in round.global_model.values())
    return Game(len(models), evaluate_coalitions, batch_size=min(64, max(1, 2**30 // max(1, model_bytes))))


def positive_shares(values: Mapping[str, float]) -> dict[str, float]:
    """Return the positive parts scaled to sum 1; uniform if no value is positive.

    >>> positive_shares({"a": 3.0, "b": -1.0, "c": 1.0})
    {'a': 0.75, 'b': 0.0, 'c': 0.25}
    """
    return normalise_weights({name: value if value > UTILITY_EPS else 0.0 for name, value in values.items()})


@dataclass(frozen=True)
class CoalitionState:
    """V, the accumulated value of every client seen so far, in client order."""

    by_client: Mapping[str, float] = field(default_factory=dict)

    def with_clients(self, clients: Sequence[str]) -> CoalitionState:
        """Add new clients at the mean value; at 0 if there is no client yet."""
        mean = math.fsum(self.by_client.values()) / max(1, len(self.by_client))
        all_values = {**dict.fromkeys(clients, mean), **self.by_client}
        return CoalitionState({name: all_values[name] for name in natural_sorted(all_values)})

    def add(self, values: Mapping[str, float], decay: float) -> CoalitionState:
        """Return λ V + φ for the clients in `values`."""
        all_values = self.with_clients(list(values)).by_client
        return CoalitionState(
            {
                name: decay * previous + values[name] if name in values else previous
                for name, previous in all_values.items()
            }
        )


@dataclass(frozen=True)
class ValueEstimate:
    """Values of the players of one game."""

    values: list[float] | None
    """φ of each player; None if the round was not estimated, which leaves V unchanged."""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    errors: list[float] | None = None
    """Standard errors of `values` if they were sampled."""


@dataclass(frozen=True)
class CoalitionRule(Rule[CoalitionState]):
    """Base of rules that value clients by the utility of coalitions."""

    requirements: ClassVar[Requirements] = Requirements(validation=True)
    state_type: ClassVar[type] = CoalitionState

    # Described in `Field`, because pydantic does not read docstrings of inherited attributes.
    utility: Annotated[
        Literal["accuracy", "balanced_accuracy"],
        Field(description="Utility of a model on the validation data."),
    ] = "accuracy"
    decay: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="λ, the factor on a client's accumulated value in each round in which it takes part.",
        ),
    ] = 1.0

    @abstractmethod
    def estimate(self, game: Game, generator: torch.Generator) -> ValueEstimate:
        """Return the values of the players of one game."""

    def init(self, context: ServerContext) -> CoalitionState:
        return CoalitionState()

    def compute_weights(
        self, state: CoalitionState, context: ServerContext, round: RoundData
    ) -> WeightingResult[CoalitionState]:
        names = natural_sorted(round.clients)
        game = make_round_game(round, names, self.utility)
        estimate = self.estimate(game, make_generator(context.seed, "coalitions", round.round_number))
        empty_value, grand_value = game.empty_and_grand()
        values = dict(zip(names, estimate.values or [0.0] * len(names), strict=True))
        state = state.with_clients(names) if estimate.values is None else state.add(values, self.decay)
        diagnostics = {"values": values, "gain": grand_value - empty_value, "evaluations": game.evaluations}
        if estimate.errors is not None:
            diagnostics["standard_errors"] = dict(zip(names, estimate.errors, strict=True))
        scores = None if estimate.values is None else positive_shares(values)
        return weighting_from_values(state, state, names, scores, {**diagnostics, **estimate.diagnostics})


def weighting_from_values(
    state: State,
    values: CoalitionState,
    names: Sequence[str],
    scores: Mapping[str, float] | None,
    diagnostics: Mapping[str, Any],
) -> WeightingResult[State]:
    """Return the result of a round whose weights are the positive parts of V."""
    return WeightingResult(
        state,
        aggregation_weights=positive_shares({name: values.by_client[name] for name in names}),
        client_weights=positive_shares(values.by_client),
        scores=scores,
        diagnostics=diagnostics,
    )
