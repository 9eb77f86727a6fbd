"""What a rival is given and what it gives back.

    python RIVAL.py DATA.safetensors SETTINGS.json

The data are dealt already: `client/I/inputs`, `client/I/labels`, `test/inputs`, `test/labels`, and `initial/KEY` for
the model to start from. Settings say the layers of the model, `batch`, `lr`, `rounds` and `threads`, and what the
rival alone understands. It plays one round to warm up and `rounds` more, and prints a line `FOUND {...}` with their
seconds and the accuracy at the end. Needs torch and safetensors only: rivals live in environments of their own.
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
class Dealt:
    clients: list[Pair]
    test: Pair
    initial: dict[str, Tensor]
    settings: dict[str, Any]

    @property
    def all_rounds(self) -> int:
        """The warm-up round included."""
        return int(self.settings["rounds"]) + 1

    def model(self) -> nn.Sequential:
        """As it is in the beginning."""
        layers = self.settings["layers"]
        model = nn.Sequential(OrderedDict((name, getattr(nn, kind)(*sizes)) for name, kind, *sizes in layers))
        model.load_state_dict(self.initial)
        return model

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        model.eval()
        inputs, labels = self.test
        right = sum(
            int((model(x).argmax(1) == y).sum())
            for x, y in zip(inputs.split(1000), labels.split(1000), strict=True)
        )
        return right / len(labels)

    def report(self, seconds: list[float], model: nn.Module, **more: object) -> None:
        """`seconds` of every round, the first of which is left out."""
        assert len(seconds) == self.all_rounds
        found = {"seconds": seconds[1:], "accuracy": self.accuracy(model), "torch": torch.__version__, **more}
        print("FOUND " + json.dumps(found), flush=True)


def given() -> Dealt:
    """What the command line names; threads are set as the settings say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("settings", type=Path)
    named = parser.parse_args()
    return read(named.data, named.settings)


@lru_cache(maxsize=1)
def read(data: Path, settings: Path) -> Dealt:
    """Once in a process, however often it is asked for."""
    chosen = json.loads(settings.read_text())
    torch.set_num_threads(chosen["threads"])
    torch.manual_seed(0)
    tensors = load_file(data)
    initial = {
        key.removeprefix("initial/"): value for key, value in tensors.items() if key.startswith("initial/")
    }
    return Dealt(
        clients=[
            (tensors[f"client/{i}/inputs"], tensors[f"client/{i}/labels"]) for i in range(chosen["clients"])
        ],
        test=(tensors["test/inputs"], tensors["test/labels"]),
        initial=initial,
        settings=chosen,
    )
