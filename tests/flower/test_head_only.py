"""Members that train and send the head alone, on digits, with the default settings of the strategy."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import ArrayRecord, Message
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from celm.flower import CelmStrategy
from support.small_grid import Client, SmallGrid, arrays_of, reply

HELD = {"a": (0, 1, 2, 3), "b": (2, 3, 4, 5), "c": (4, 5, 6, 7), "d": (0, 1, 6, 7), "e": (8, 9)}
HEAD = ("2.weight", "2.bias")
ROUNDS = 8


def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32) / 8 - 1, torch.tensor(labels)


def fit(model: nn.Module, classes: tuple[int, ...], steps: int, rng: torch.Generator) -> None:
    """Train the parameters that require a gradient."""
    inputs, labels = digits()
    held = torch.isin(labels, torch.tensor(classes)).nonzero().flatten()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    for _ in range(steps):
        batch = held[torch.randint(len(held), (32,), generator=rng)]
        optimiser.zero_grad()
        F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimiser.step()


def pretrained() -> nn.Sequential:
    """Return a model with a trained backbone, which is frozen, and a new head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        fit(model, tuple(range(10)), 100, torch.Generator().manual_seed(0))
        model[2].reset_parameters()
    model[0].requires_grad_(False)
    return model


def head_of(model: nn.Module) -> ArrayRecord:
    return ArrayRecord({name: model.state_dict()[name].clone() for name in HEAD})


def member(model: nn.Module, classes: tuple[int, ...], seed: int) -> Client:
    own, rng = copy.deepcopy(model), torch.Generator().manual_seed(seed)

    def train(message: Message) -> Message:
        own.load_state_dict(arrays_of(message), strict=False)
        fit(own, classes, 20, rng)
        return reply(message, head_of(own))

    return train


def unchanged(message: Message) -> Message:
    return reply(message, ArrayRecord(arrays_of(message)))


def accuracy(model: nn.Module, head: dict[str, Any]) -> float:
    model.load_state_dict(head, strict=False)
    inputs, labels = digits()
    with torch.no_grad():
        return float((model(inputs).argmax(1) == labels).float().mean())


def test_evidence_is_on_held_classes_and_only_an_idle_member_is_flagged() -> None:
    model = pretrained()
    clients = {name: member(model, held, seed) for seed, (name, held) in enumerate(HELD.items())}
    grid = SmallGrid({**clients, "idler": unchanged})
    strategy = CelmStrategy(model, (64,), 10, partial=True, fraction_evaluate=0.0, retries=0)
    result = strategy.start(grid, head_of(model), num_rounds=ROUNDS)
    assert all(tuple(message.content["arrays"]) == HEAD for message in grid.sent)
    assert list(result.evidence) == [1, 2, 3, 4, 5]
    for name, held in HELD.items():
        row = result.evidence[5][name]
        assert sum(row[k] for k in held) > 0.9 * sum(row) > 0
    assert [list(record["flags"]) for record in result.records] == [["idler"]] * ROUNDS
    assert (result.contributions[ROUNDS]["idler"], result.earned["idler"]) == (0, 0)
    # Heads are kept during the warm-up, and they are all that is exchanged: members share nothing before round 6.
    in_warmup, afterwards = ([arrays_of(m)[HEAD[0]] for m in grid.sent[6 * n : 6 * n + 5]] for n in (4, 5))
    assert not torch.equal(in_warmup[0], in_warmup[1])
    assert torch.equal(afterwards[0], afterwards[1])
    assert accuracy(model, result.arrays.to_torch_state_dict()) > 0.8
