"""The input and the report of a rival.

    python RIVAL.py DATA.safetensors SETTINGS.json

The data are partitioned: `client/I/inputs`, `client/I/labels`, `test/inputs`, `test/labels`, and `initial/KEY` for the
initial model. Settings are the layers of the model, `batch`, `lr`, `rounds` and `threads`, and settings of the rival
itself. The rival runs one warm-up round and `rounds` more. Then it prints a line `FOUND {...}` with their seconds and
the final accuracy. This module needs only torch and safetensors, because rivals have their own environments.
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True)
class RivalData:
    clients: list[Pair]
    test: Pair
    initial: dict[str, Tensor]
    settings: dict[str, Any]

    @property
    def all_rounds(self) -> int:
        """Number of rounds, with the warm-up round."""
        return int(self.settings["rounds"]) + 1

    def model(self) -> nn.Sequential:
        """Build the initial model."""
        layers = self.settings["layers"]
        model = nn.Sequential(OrderedDict((name, getattr(nn, kind)(*sizes)) for name, kind, *sizes in layers))
        model.load_state_dict(self.initial)
        return model

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        model.eval()
        inputs, labels = self.test
        correct = sum(
            int((model(x).argmax(1) == y).sum())
            for x, y in zip(inputs.split(1000), labels.split(1000), strict=True)
        )
        return correct / len(labels)

    def report(self, seconds: list[float], model: nn.Module, **more: object) -> None:
        """Print the report. `seconds` are those of every round; the first round is not reported."""
        assert len(seconds) == self.all_rounds
        result = {
            "seconds": seconds[1:],
            "accuracy": self.accuracy(model),
            "torch": torch.__version__,
            **more,
        }
        print("FOUND " + json.dumps(result), flush=True)


def read_arguments() -> RivalData:
    """Read the files that the command line names, and set the number of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("settings", type=Path)
    arguments = parser.parse_args()
    return read_data(arguments.data, arguments.settings)


@lru_cache(maxsize=1)
def read_data(data: Path, settings: Path) -> RivalData:
    """Read data and settings. Repeated calls in a process return the same object."""
    rival_settings = json.loads(settings.read_text())
    torch.set_num_threads(rival_settings["threads"])
    torch.manual_seed(0)
    tensors = load_file(data)
    initial = {
        key.removeprefix("initial/"): value for key, value in tensors.items() if key.startswith("initial/")
    }
    return RivalData(
        clients=[
            (tensors[f"client/{i}/inputs"], tensors[f"client/{i}/labels"])
            for i in range(rival_settings["clients"])
        ],
        test=(tensors["test/inputs"], tensors["test/labels"]),
        initial=initial,
        settings=rival_settings,
    )
