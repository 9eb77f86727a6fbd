"""The model, the data and the training: what a client would do without Flower, too."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

SEED = 7


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits():
    """Inputs `[1797, 1, 8, 8]` and labels, shuffled the same way everywhere."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return inputs[order], torch.tensor(labels)[order]


def held_by(partition, partitions):
    """A client's share of the first 1500: the higher its number, the more classes it knows (2, 4, ... 10)."""
    inputs, labels = digits()
    known = 2 * (partition % 5) + 2
    rows = torch.arange(1500)[partition::partitions]
    rows = rows[labels[rows] < known]
    return inputs[rows], labels[rows]


def test_set():
    inputs, labels = digits()
    return inputs[1500:], labels[1500:]


def train(model, inputs, labels, lr, seed, epochs=5, batch=16):
    """Plain SGD; the same numbers for the same seed."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(batch):
            optimiser.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimiser.step()


@torch.no_grad()
def accuracy(model, inputs, labels):
    model.eval()
    return (model(inputs).argmax(dim=1) == labels).float().mean().item()
