"""The model, the data and the training, independent of Flower."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from celm.data.sources.fashion_mnist import FashionMnist

MEMBERS = 5
CLASSES_PER_MEMBER = 4
SAMPLES_PER_CLASS = 300


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def classes_of(partition: int) -> list[int]:
    """Return the four classes of a member. Each class belongs to two members."""
    return [(2 * partition + offset) % 10 for offset in range(CLASSES_PER_MEMBER)]


@cache
def member_data(partition: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a member's samples. No two members share one."""
    data = FashionMnist().load()
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(data.train_labels), generator=generator)
    rows = []
    for label in classes_of(partition):
        order = [owner for owner in range(MEMBERS) if label in classes_of(owner)].index(partition)
        of_class = shuffled[data.train_labels[shuffled] == label]
        rows.append(of_class[order * SAMPLES_PER_CLASS : (order + 1) * SAMPLES_PER_CLASS])
    selected = torch.cat(rows)
    return data.train_inputs[selected], data.train_labels[selected]


@cache
def test_data() -> tuple[Tensor, Tensor]:
    data = FashionMnist().load()
    return data.test_inputs[:2000], data.test_labels[:2000]


def train(model: nn.Module, inputs: Tensor, labels: Tensor, seed: int) -> None:
    """Train one epoch by SGD with momentum."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.train()
    for rows in torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).split(32):
        optimiser.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(inputs[rows]), labels[rows]))
        optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    model.eval()
    return (model(inputs).argmax(dim=1) == labels).float().mean().item()
