"""Games of coalitions with known answers, and rounds with made-up validation data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from celm.models.state_dict import StateDict
from celm.rules.coalitions import Game
from celm.rules.messages import RoundData
from celm.rules.rule import ServerContext
from support.rule_rounds import a_round

Worth = Callable[[frozenset[int]], float]


def members(coalition: int) -> frozenset[int]:
    return frozenset(i for i in range(coalition.bit_length()) if coalition >> i & 1)


def game_of(players: int, worth: Worth, batch: int = 64) -> Game:
    return Game(players, lambda coalitions: [worth(members(coalition)) for coalition in coalitions], batch)


def table_game(table: Sequence[float]) -> Game:
    """A game by the worth of every coalition."""
    return Game((len(table) - 1).bit_length(), lambda coalitions: [table[c] for c in coalitions])


def additive(amounts: Sequence[float]) -> Game:
    return game_of(len(amounts), lambda S: math.fsum(amounts[i] for i in S))


def unanimity(players: int, needed: frozenset[int]) -> Game:
    return game_of(players, lambda S: float(needed <= S))


def airport(costs: Sequence[float]) -> Game:
    return game_of(len(costs), lambda S: max((costs[i] for i in S), default=0.0))


def airport_shares(costs: Sequence[float]) -> list[float]:
    """Littlechild & Owen 1973, for costs in rising order: each piece of runway is shared by all who need it."""
    shares, share, last = [], 0.0, 0.0
    for i, cost in enumerate(costs):
        share, last = share + (cost - last) / (len(costs) - i), cost
        shares.append(share)
    return shares


def glove(left: int, right: int) -> Game:
    return game_of(left + right, lambda S: float(min(sum(i < left for i in S), sum(i >= left for i in S))))


def majority(players: int) -> Game:
    return game_of(players, lambda S: float(len(S) > players / 2))


def by_all_orders(game: Game) -> list[float]:
    """Shapley's value from its other definition: the mean of what a player adds, over all N! orders."""
    added: list[list[float]] = [[] for _ in range(game.players)]
    for order in permutations(range(game.players)):
        coalition = 0
        for player in order:
            before, after = game.values([coalition, coalition | 1 << player])
            added[player].append(after - before)
            coalition |= 1 << player
    return [math.fsum(values) / len(values) for values in added]


A_FEW_GAMES = pytest.mark.parametrize(
    "game",
    [airport([0.1, 0.2, 0.5, 0.6]), glove(2, 3), unanimity(4, frozenset({0, 2})), majority(5)],
    ids=["airport", "glove", "unanimity", "majority"],
)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SAMPLES = 1000
START = {"hits": torch.full((2,), 100.0), "steps": torch.tensor(0)}


def validate(models: Sequence[StateDict]) -> list[Tensor]:
    """Models that say how many of 1000 samples of each of two classes they get right."""
    counts = []
    for model in models:
        right = [min(SAMPLES, max(0, round(float(hits)))) for hits in model["hits"]]
        counts.append(torch.tensor([[right[0], SAMPLES - right[0]], [SAMPLES - right[1], right[1]]]))
    return counts


def facts(seed: int = 1) -> ServerContext:
    return ServerContext(("a",), 2, (1,), 5, seed, nn.Identity(), ())


def round_of(hits: Mapping[str, Sequence[float]], number: int = 1, **other: Any) -> RoundData:
    models: dict[str, StateDict] = {
        name: {"hits": torch.tensor(right, dtype=torch.float32), "steps": torch.tensor(3)}
        for name, right in hits.items()
    }
    return a_round(START, models, number, **{"validate": validate, **other})
