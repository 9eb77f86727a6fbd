"""One command audits the files of a plain PyTorch loop, a Flower app and transformers.

All start from a model that has seen every class; then the first two clients learn from classes 0 and 1, the third
from class 2 alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import Result

from celm.core.model_stack import extract_logits

SHAPE = (1, 8, 8)
HELD = {"north": (0, 1), "south": (0, 1), "west": (2,)}
FACTORY = """
from torch import nn

def make(classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes)
    )
"""


def batch(classes: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Return images of noise with a bright bar, whose position is the class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (64,), generator=rng)]
    images = 0.3 * torch.randn(64, *SHAPE, generator=rng)
    for image, label in zip(images, labels, strict=True):
        image[:, :, 2 * int(label) : 2 * int(label) + 2] += 1.5
    return images, labels


def trained(start: nn.Module, classes: tuple[int, ...], seed: int) -> nn.Module:
    model = copy.deepcopy(start).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(40):
        images, labels = batch(classes, 1000 * seed + step)
        loss = F.cross_entropy(extract_logits(model(images)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def clients_of(start: nn.Module) -> dict[str, nn.Module]:
    return {name: trained(start, held, seed) for seed, (name, held) in enumerate(HELD.items())}


def plain(tmp_path: Path) -> nn.Module:
    (tmp_path / "nets.py").write_text(FACTORY)
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(FACTORY, space)
    return trained(space["make"](3), (0, 1, 2), seed=9)


def save_pytorch_loop(tmp_path: Path) -> tuple[str, ...]:
    """Save state dicts by `torch.save`; one client saves its optimiser, too."""
    start = plain(tmp_path)
    torch.save(start.state_dict(), tmp_path / "global.pt")
    for name, model in clients_of(start).items():
        state: Any = model.state_dict()
        kept = {"epoch": 3, "model_state_dict": state, "optimizer": {"lr": 0.1}} if name == "west" else state
        torch.save(kept, tmp_path / "clients" / f"{name}.pt")
    return ("--global", "global.pt", "--model", "nets:make", "--input-shape", "1,8,8")


NETS = ("--model", "nets:make", "--input-shape", "1,8,8")


def array_record(model: nn.Module) -> Any:
    """Return the record that a Flower client sends to its server."""
    flwr = pytest.importorskip("flwr.app", reason="needs pip install 'celm[flower]'")
    return flwr.ArrayRecord(model.state_dict())


def save_flower_in_order(tmp_path: Path) -> tuple[str, ...]:
    """Save lists of arrays by `np.savez`."""
    start = plain(tmp_path)
    np.savez(tmp_path / "global.npz", *array_record(start).to_numpy_ndarrays())
    for name, model in clients_of(start).items():
        np.savez(tmp_path / "clients" / f"{name}.npz", *array_record(model).to_numpy_ndarrays())
    return ("--global", "global.npz", *NETS)


def save_flower_by_name(tmp_path: Path) -> tuple[str, ...]:
    """Save arrays by name."""
    start = plain(tmp_path)
    np.savez(tmp_path / "global.npz", **named(start))
    for name, model in clients_of(start).items():
        np.savez_compressed(tmp_path / "clients" / f"{name}.npz", **named(model))
    return ("--global", "global.npz", *NETS)


def named(model: nn.Module) -> dict[str, Any]:
    return {name: array.numpy() for name, array in array_record(model).items()}


def save_flower_state_dicts(tmp_path: Path) -> tuple[str, ...]:
    """Save state dicts as the server of a Flower quickstart saves its last model."""
    start = plain(tmp_path)
    torch.save(array_record(start).to_torch_state_dict(), tmp_path / "global.pt")
    for name, model in clients_of(start).items():
        torch.save(array_record(model).to_torch_state_dict(), tmp_path / "clients" / f"{name}.pt")
    return ("--global", "global.pt", *NETS)


def save_transformers(tmp_path: Path) -> tuple[str, ...]:
    """Save folders by `save_pretrained`; the configuration has the shape of the input."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=3, architectures=["ViTForImageClassification"],
    )  # fmt: skip
    torch.manual_seed(0)
    start = trained(transformers.ViTForImageClassification(config), (0, 1, 2), seed=9)
    start.save_pretrained(tmp_path / "start")  # type: ignore[operator]
    for name, model in clients_of(start).items():
        model.save_pretrained(tmp_path / "clients" / name)  # type: ignore[operator]
    return ("--global", "start/model.safetensors", "--model", "start")


SAVED = [
    save_pytorch_loop,
    save_flower_in_order,
    save_flower_by_name,
    save_flower_state_dicts,
    save_transformers,
]


@pytest.mark.parametrize("save", SAVED, ids=lambda save: save.__name__)
def test_the_same_command_audits_what_every_framework_saves(
    tmp_path: Path, invoke: Callable[..., Result], save: Callable[[Path], tuple[str, ...]]
) -> None:
    (tmp_path / "clients").mkdir()
    arguments = save(tmp_path)
    quick = ("--set", "probe.steps=40", "--out", "audit", "--format", "json")
    if save is save_transformers:  # the model is too small to learn three classes in a few steps
        quick += ("--preset", "none")
    result = invoke("audit", *arguments, "--clients", "clients", "--classes", "3", *quick)
    assert result.exit_code == 0, (result.output, result.stderr, result.exception)
    document = json.loads(result.stdout)
    assert list(document["scores"]) == list(HELD)
    assert sum(document["scores"].values()) == pytest.approx(1)
    assert document["excluded"] == document["flags"] == {}
    holder = max(HELD, key=lambda name: document["shares"][name][2])
    assert holder == "west"
    if save is not save_transformers:
        assert document["sole_holders"] == {"2": "west"}
    model = arguments[arguments.index("--model") + 1]
    assert invoke("audit-verify", "audit", "--full", "--model", model).exit_code == 0
