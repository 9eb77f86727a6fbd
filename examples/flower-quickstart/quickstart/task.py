"""The model, the data and the training, independent of Flower."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

SEED = 7


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits():
    """Return inputs `[1797, 1, 8, 8]` and labels, in the same shuffled order in every process."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return inputs[order], torch.tensor(labels)[order]


def load_partition(partition, partitions):
    """Return a client's part of the first 1500 samples. A higher number has more classes: 2, 4, ... 10."""
    inputs, labels = digits()
    num_classes = 2 * (partition % 5) + 2
    rows = torch.arange(1500)[partition::partitions]
    rows = rows[labels[rows] < num_classes]
    return inputs[rows], labels[rows]


def test_set():
    inputs, labels = digits()
    return inputs[1500:], labels[1500:]


def train(model, inputs, labels, lr, seed, epochs=5, batch=16):
    """Train by plain SGD. The same seed gives the same model."""
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
