"""Models of the user that training or the probe cannot use are refused in one line, before any training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import celm
from celm.base.errors import CelmError

pytestmark = pytest.mark.filterwarnings("ignore:run folders do not save")

RNG = np.random.default_rng(0)
DATA = (RNG.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3)


class Net(nn.Module):
    """A linear classifier whose logits go through a function."""

    def __init__(self, change: Callable[[Tensor], Tensor] = Tensor.clone) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.change = change

    def forward(self, inputs: Tensor) -> Tensor:
        return self.change(self.head(inputs))


class Counting(Net):
    """Assigns a buffer in each forward pass, in training and in evaluation."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return super().forward(inputs)


def make_nan() -> nn.Module:
    model = Net()
    nn.init.constant_(model.head.bias, float("nan"))
    return model


def make_detached() -> nn.Module:
    return Net(Tensor.detach)


def make_integers() -> nn.Module:
    return Net(Tensor.long)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (make_nan, r"not finite: tensor 'head\.bias'"),
        (make_detached, r"do not depend on its parameters \(remove detach"),
        (make_integers, "returns torch.int64, not logits"),
    ],
)
def test_a_model_that_cannot_be_trained_is_one_line(
    tmp_path: Path, factory: Callable[[], nn.Module], reason: str
) -> None:
    experiment = celm.Experiment(dataset=DATA, model=factory, rounds=1, workers=0)
    with pytest.raises(CelmError, match=reason) as caught:
        celm.run(experiment, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_a_model_that_assigns_a_buffer_in_each_forward_pass_is_probed(tmp_path: Path) -> None:
    split = {"name": "iid", "clients": 2}
    counted, plain = (
        celm.run(
            celm.Experiment(dataset=DATA, model=model, split=split, rounds=2, workers=0), tmp_path / name
        )
        for name, model in (("counting", Counting), ("plain", Net))
    )
    assert counted.weights == pytest.approx(plain.weights, abs=1e-5)


def test_a_probe_of_another_input_shape_is_one_line() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(CelmError, match=r"fails on inputs of shape \(7,\): RuntimeError") as caught:
        celm.probe([model], (7,), 3)
    assert "\n" not in str(caught.value)


def test_an_audit_of_models_without_names_is_one_line() -> None:
    with pytest.raises(CelmError, match=r"models by name.*\{'north': model\}"):
        celm.audit(Net(), [Net(), Net()], input_shape=6, classes=3)
