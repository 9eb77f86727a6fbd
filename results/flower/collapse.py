"""How often the test of collapse is wrong: python results/flower/collapse.py (about five core-minutes; prints a table).

Honest FedAvg on `digits` with strong label skew. The global model is evaluated on balanced test data, and on a fifth of
each client's own samples by all clients or by a sample of them. Falls to 0.0985 are then put into the same curves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from celm.metrics.collapse import find_collapses

ROUNDS, CLASSES, SEEDS = 30, 10, range(4)
SPLITS = ("2 classes", "1 class", "dirichlet 0.05")
CLIENTS, EPOCHS, PARTICIPATION = (10, 5), (1, 4), (1.0, 0.4)
FALLEN = 0.0985
Rows = np.ndarray


@dataclass(frozen=True)
class Curves:
    participation: float
    server: list[float]
    """Accuracy on balanced data, by round."""
    clients: Rows
    """Accuracy `[rounds, clients]`."""
    sizes: Rows

    def evaluated_by(self, fraction: float, rng: np.random.Generator) -> list[float]:
        """Return the weighted mean over a sample of the clients, by round."""
        count = min(len(self.sizes), max(2, round(fraction * len(self.sizes))))
        samples = (rng.choice(len(self.sizes), count, replace=False) for _ in self.clients)
        return [
            float(np.average(row[sample], weights=self.sizes[sample]))
            for row, sample in zip(self.clients, samples, strict=True)
        ]


def partition(rng: np.random.Generator, labels: Rows, rows: Rows, clients: int, split: str) -> list[Rows]:
    parts: list[list[int]] = [[] for _ in range(clients)]
    per_client = int(split[0]) if split[0].isdecimal() else 0
    for k in range(CLASSES):
        own = rows[labels[rows] == k]
        if per_client:
            held = [range(i * per_client, (i + 1) * per_client) for i in range(clients)]
            owners = [i for i in range(clients) if k in {c % CLASSES for c in held[i]}]
            chunks = np.array_split(own, len(owners)) if owners else []
        else:
            owners = list(range(clients))
            shares = rng.dirichlet([float(split.split()[1])] * clients)
            chunks = np.split(own, (np.cumsum(shares)[:-1] * len(own)).astype(int))
        for owner, chunk in zip(owners, chunks, strict=True):
            parts[owner] += list(chunk)
    return [rng.permutation(part).astype(int) for part in parts if len(part) >= 5]


def train(
    net: nn.Module, x: torch.Tensor, y: torch.Tensor, rows: Rows, epochs: int, rng: np.random.Generator
) -> None:
    parameters = list(net.parameters())
    for _ in range(epochs):
        order = rng.permutation(rows)
        for first in range(0, len(order), 64):
            batch = order[first : first + 64]
            gradients = torch.autograd.grad(F.cross_entropy(net(x[batch]), y[batch]), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(0.1 * gradient)


def federations() -> Iterator[Curves]:
    images, targets = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(targets)
    for seed, split, clients, epochs, participation in itertools.product(
        SEEDS, SPLITS, CLIENTS, EPOCHS, PARTICIPATION
    ):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        order = rng.permutation(len(y))
        test, parts = order[:400], partition(rng, targets, order[400:], clients, split)
        held_out = [part[: max(1, len(part) // 5)] for part in parts]
        training = [part[len(part) // 5 :] for part in parts]
        net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        model = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        server, by_client = [], []
        for _ in range(ROUNDS):
            count = min(len(parts), max(2, round(participation * len(parts))))
            selected = rng.choice(len(parts), count, replace=False)
            total = sum(len(training[i]) for i in selected)
            merged = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
            for i in selected:
                net.load_state_dict(model)
                train(net, x, y, training[i], epochs, rng)
                for name, tensor in net.state_dict().items():
                    merged[name] += tensor * (len(training[i]) / total)
            model = merged
            net.load_state_dict(model)
            with torch.no_grad():
                right = (net(x).argmax(1) == y).float()
            server.append(right[test].mean().item())
            by_client.append([right[rows].mean().item() for rows in held_out])
        yield Curves(participation, server, np.array(by_client), np.array([len(rows) for rows in held_out]))


def alarms(values: Sequence[float]) -> bool:
    return bool(find_collapses(dict(enumerate(values, start=1)), CLASSES))


def main() -> None:
    torch.set_num_threads(1)
    runs, rng = list(federations()), np.random.default_rng(0)
    print("| clients that train | evaluated | false alarms |\n|---|---|---|")
    for participation, (how, fraction) in itertools.product(
        PARTICIPATION, (("server", 0.0), ("all clients", 1.0), ("half", 0.5), ("a fifth", 0.2))
    ):
        chosen = [
            run
            for run in runs
            if run.participation == participation
            for _ in range(5 if 0 < fraction < 1 else 1)
        ]
        wrong = sum(alarms(run.evaluated_by(fraction, rng) if fraction else run.server) for run in chosen)
        print(f"| {participation:.0%} | {how} | {wrong} of {len(chosen)} |")
    fallen = [
        values[: first - 1] + [FALLEN] * 5
        for run in runs
        for values in (run.server, run.evaluated_by(1.0, rng))
        for first in (3, 6, 15, 25)
        if max(values[: first - 1]) >= 0.3
    ]
    print(f"\nfalls to {FALLEN} found: {sum(map(alarms, fallen))} of {len(fallen)}")


if __name__ == "__main__":
    main()
