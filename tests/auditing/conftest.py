"""A small federation on disk: the model that clients started from, and what three of them sent."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import Result

from celm.models import build_model
from celm.models.state import state_of

SHAPE, CLASSES, WIDTHS = (1, 2, 3), 3, [4]
QUICK = ("--set", "probe.steps=4", "--set", f"options.widths={WIDTHS}")


def random_state(seed: int) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return state_of(build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES))


def rewritten(content: bytes, entries: dict[str, bytes]) -> bytes:
    """An archive with other entries in the place of its own."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, entries.get(name, old.read(name)))
    return made.getvalue()


@dataclass(frozen=True)
class Uploads:
    """`global.safetensors` and the folder `clients` with a, b and c."""

    place: Path
    invoke: Callable[..., Result]

    @property
    def start(self) -> Path:
        return self.place / "global.safetensors"

    @property
    def clients(self) -> Path:
        return self.place / "clients"

    def save(self, name: str, state: dict[str, Tensor]) -> Path:
        path = self.clients / f"{name}.safetensors"
        save_file(state, path)
        return path

    def arguments(self, *more: object) -> tuple[object, ...]:
        shape = ",".join(map(str, SHAPE))
        named = ("--global", self.start, "--clients", self.clients, "--model", "mlp", "--input-shape", shape)
        return ("audit", *named, "--classes", CLASSES, *QUICK, *more)

    def audit(self, *more: object) -> Result:
        return self.invoke(*self.arguments(*more))

    def found(self, *more: object, code: int = 0) -> dict[str, Any]:
        """The JSON that an audit prints."""
        result = self.audit("--format", "json", *more)
        assert result.exit_code == code, (result.output, result.stderr, result.exception)
        assert "Traceback" not in result.output + result.stderr
        told: dict[str, Any] = json.loads(result.stdout)
        return told


@pytest.fixture
def uploads(tmp_path: Path, invoke: Callable[..., Result]) -> Uploads:
    made = Uploads(tmp_path, invoke)
    made.clients.mkdir()
    save_file(random_state(0), made.start)
    for seed, name in enumerate("abc", start=1):
        made.save(name, random_state(seed))
    return made
