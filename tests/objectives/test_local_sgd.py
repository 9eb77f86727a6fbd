"""Local training against `torch.optim.SGD` in a separate loop, and edge cases."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from celm.data.augment import crop_and_flip
from celm.objectives.cross_entropy import Plain
from celm.objectives.local_sgd import shuffled_batches, train_locally
from celm.objectives.objective import LocalTask
from celm.rules.messages import ServerMessage

CLASSES = 3


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def dataset(count: int = 40, shape: tuple[int, ...] = (8,)) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, *shape, generator=draw), torch.randint(CLASSES, (count,), generator=draw)


def task_of(module: nn.Module, labels: Tensor, lr: float = 0.1) -> LocalTask[None]:
    return LocalTask(
        module=module,
        parameters=[parameter for parameter in module.parameters() if parameter.requires_grad],
        head="3",
        message=ServerMessage({}),
        labels=labels,
        classes=CLASSES,
        lr=lr,
        client_state=None,
    )


def train(
    module: nn.Module,
    inputs: Tensor,
    rows: Tensor,
    labels: Tensor,
    *,
    lr: float = 0.1,
    batch: int = 4,
    epochs: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    fill: Tensor | None = None,
    seed: int = 5,
    optimizer: Literal["sgd", "adam"] = "sgd",
) -> int:
    return train_locally(
        Plain(),
        task_of(module, labels, lr),
        None,
        inputs,
        rows,
        batch_size=batch,
        epochs=epochs,
        momentum=momentum,
        weight_decay=weight_decay,
        pad_value=fill,
        generator=torch.Generator().manual_seed(seed),
        optimizer=optimizer,
    )


def states_close(one: nn.Module, other: nn.Module, tolerance: float = 0.0) -> None:
    expected = other.state_dict()
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_adam_follows_its_formula(weight_decay: float) -> None:
    """Moments by hand, with bias correction; they start at 0 in each call."""
    (inputs, labels), rows = dataset(8), torch.arange(8)
    ours, theirs = net(), net()
    for _ in range(2):
        assert (
            train(
                ours,
                inputs,
                rows,
                labels,
                batch=8,
                lr=0.01,
                epochs=3,
                weight_decay=weight_decay,
                optimizer="adam",
            )
            == 3
        )
        parameters = list(theirs.parameters())
        first = [torch.zeros_like(parameter) for parameter in parameters]
        second = [torch.zeros_like(parameter) for parameter in parameters]
        for t in range(1, 4):
            gradients = torch.autograd.grad(F.cross_entropy(theirs(inputs), labels), parameters)
            with torch.no_grad():
                for w, g, m, v in zip(parameters, gradients, first, second, strict=True):
                    g = g + weight_decay * w
                    m.copy_(0.9 * m + 0.1 * g)
                    v.copy_(0.999 * v + 0.001 * g * g)
                    w -= 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    states_close(ours, theirs, tolerance=1e-5)
    assert all(parameter.grad is None for parameter in ours.parameters())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_descent_is_torchs_sgd(momentum: float, weight_decay: float) -> None:
    (inputs, all_labels), rows = dataset(), torch.tensor([3, 1, 30, 22, 7, 9, 39, 0, 15, 16, 17])
    ours, theirs = net(), net()
    steps = train(
        ours, inputs, rows, all_labels[rows], epochs=3, momentum=momentum, weight_decay=weight_decay
    )
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    order = torch.Generator().manual_seed(5)
    count = 0
    for _ in range(3):
        shuffled = rows[torch.randperm(len(rows), generator=order)]
        for begin in range(0, len(rows), 4):
            chosen = shuffled[begin : begin + 4]
            optimiser.zero_grad()
            F.cross_entropy(theirs(inputs[chosen]), all_labels[chosen]).backward()
            optimiser.step()
            count += 1
    assert steps == count == 9
    states_close(ours, theirs, 1e-6)


def test_one_step_by_hand() -> None:
    """Two samples, a linear model at zero: the gradient of a logit is the mean of (1/K - [y = c]) x."""
    module = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(module.weight)
    inputs = torch.tensor([[1.0, 0.0], [0.0, 4.0]])
    assert train(module, inputs, torch.arange(2), torch.tensor([0, 1]), lr=0.5) == 1
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[0.125, -0.5], [-0.125, 0.5]]))


def test_velocity_starts_at_zero_every_time() -> None:
    """The optimiser is new in every round: two calls of one epoch are not one call of two."""
    (inputs, labels), rows = dataset(8), torch.arange(8)
    twice, once, by_torch = net(), net(), net()
    for seed in (5, 6):
        train(twice, inputs, rows, labels, momentum=0.9, seed=seed)
    train(once, inputs, rows, labels, momentum=0.9, epochs=2)
    for seed in (5, 6):
        optimiser = torch.optim.SGD(by_torch.parameters(), lr=0.1, momentum=0.9)
        for chosen in torch.randperm(8, generator=torch.Generator().manual_seed(seed)).split(4):
            optimiser.zero_grad()
            F.cross_entropy(by_torch(inputs[chosen]), labels[chosen]).backward()
            optimiser.step()
    states_close(twice, by_torch, 1e-6)
    assert not torch.equal(twice[1].weight, once[1].weight)


def test_labels_are_the_clients_own_not_the_datasets() -> None:
    """`labels[j]` belongs to `rows[j]`: here they are the opposite of the dataset's labels."""
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    module = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(module.weight)
    train(module, inputs, torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 1]), epochs=50)
    assert module(inputs).argmax(dim=1).tolist() == [1, 0]


def test_an_empty_client_takes_no_step() -> None:
    inputs, _ = dataset()
    module, before = net(), net()
    none = torch.empty(0, dtype=torch.int64)
    assert train(module, inputs, none, none, epochs=3, momentum=0.9, weight_decay=0.1) == 0
    states_close(module, before)


def test_no_epochs_no_steps() -> None:
    (inputs, labels), module = dataset(), net()
    assert train(module, inputs, torch.arange(40), labels, epochs=0) == 0
    states_close(module, net())


def test_parameters_that_are_not_trained_stay() -> None:
    (inputs, labels), module = dataset(), net()
    module[1].requires_grad_(False)
    train(module, inputs, torch.arange(40), labels, weight_decay=0.1, momentum=0.9)
    states_close(module[1], net()[1])
    assert not torch.equal(module[3].weight, net()[3].weight)


def test_an_unused_layer_is_allowed() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = net(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    (inputs, labels), module, expected = dataset(), Spare(), net()
    spare = copy.deepcopy(module.spare)
    train(module, inputs, torch.arange(40), labels, momentum=0.5)
    train(expected, inputs, torch.arange(40), labels, momentum=0.5)
    states_close(module.used, expected)
    states_close(module.spare, spare)


def test_no_gradients_are_left_behind() -> None:
    (inputs, labels), module = dataset(), net()
    train(module, inputs, torch.arange(40), labels)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_order_is_a_function_of_the_generator() -> None:
    (inputs, labels), rows = dataset(), torch.arange(40)
    one, again, other = net(), net(), net()
    torch.manual_seed(1)
    train(one, inputs, rows, labels)
    torch.manual_seed(2)
    train(again, inputs, rows, labels)
    train(other, inputs, rows, labels, seed=6)
    states_close(one, again)
    assert not torch.equal(one[1].weight, other[1].weight)


def test_batches_are_cropped_and_flipped_only_with_a_pad_value() -> None:
    seen: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.clone())
            return self.net(x)

    inputs, labels = dataset(6, (2, 2, 2))
    train(Watching(), inputs, torch.arange(6), labels, batch=6)
    order = torch.Generator().manual_seed(5)
    assert torch.equal(seen[0], inputs[torch.randperm(6, generator=order)])

    fill = torch.tensor([-7.0, 9.0])
    train(Watching(), inputs, torch.arange(6), labels, batch=6, fill=fill)
    order = torch.Generator().manual_seed(5)
    permuted = inputs[torch.randperm(6, generator=order)]
    assert torch.equal(seen[1], crop_and_flip(permuted, fill, order))
    assert not torch.equal(seen[1], permuted)


@given(st.integers(0, 50), st.integers(1, 60), st.integers(0, 4), st.integers(0, 1000))
@settings(deadline=None)
def test_every_epoch_is_a_permutation_in_batches_of_which_the_last_may_be_short(
    count: int, batch: int, epochs: int, seed: int
) -> None:
    result = [
        part.tolist() for part in shuffled_batches(count, batch, epochs, torch.Generator().manual_seed(seed))
    ]
    each = -(-count // batch)
    assert len(result) == epochs * each
    for epoch in range(epochs):
        parts = result[epoch * each : (epoch + 1) * each]
        assert sorted(position for part in parts for position in part) == list(range(count))
        assert [len(part) for part in parts[:-1]] == [batch] * (each - 1) if each else parts == []


def test_epochs_have_permutations_of_their_own() -> None:
    first, second = (part.tolist() for part in shuffled_batches(30, 30, 2, torch.Generator().manual_seed(0)))
    assert first != second


# --- the plain objective ------------------------------------------------------------------------------------


def test_cross_entropy_is_the_mean_of_minus_log_softmax() -> None:
    module, (inputs, labels) = net(), dataset(7)
    scores = module(inputs).detach().double()
    by_hand = -sum(float((scores[j, labels[j]].exp() / scores[j].exp().sum()).log()) for j in range(7)) / 7
    assert Plain().loss(task_of(module, labels), None, inputs, labels).item() == pytest.approx(
        by_hand, rel=1e-5
    )


def test_the_loss_reads_logits_from_an_object() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.net(x))

    inputs, labels = dataset(7)
    ours = Plain().loss(task_of(Wrapped(), labels), None, inputs, labels)
    assert ours.item() == Plain().loss(task_of(net(), labels), None, inputs, labels).item()


def test_plain_exchanges_no_tensors_and_keeps_no_state() -> None:
    task = task_of(net(), torch.zeros(1, dtype=torch.int64))
    assert Plain().start_round(task) is None
    assert Plain().extra_tensors(task, None, 3) == {}
    assert Plain().next_client_state(task, None, 3) is None
