"""The model: the layers that `model.name = "mlp"` with one width of 32 has, under the same names."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(64, 32)
        self.relu1 = nn.ReLU()
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.head(self.relu1(self.fc1(self.flatten(inputs))))
        return result
