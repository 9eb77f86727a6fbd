"""A small federation on disk: the global model and the uploads of three clients."""

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

import celm
from celm.models import build_model
from celm.models.state_dict import get_state

SHAPE, CLASSES, WIDTHS = (1, 2, 3), 3, [4]
SETTINGS: dict[str, Any] = {
    "model": "mlp", "options": {"widths": WIDTHS}, "input_shape": SHAPE, "classes": CLASSES, "probe": {"steps": 4},
}  # fmt: skip
QUICK = ("--set", "probe.steps=4", "--set", f"options.widths={WIDTHS}")


def random_state(seed: int) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_state(build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES))


def rewritten(content: bytes, entries: dict[str, bytes]) -> bytes:
    """Return an archive with some entries replaced."""
    rewritten_archive = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(rewritten_archive, "w") as new:
        for name in old.namelist():
            new.writestr(name, entries.get(name, old.read(name)))
    return rewritten_archive.getvalue()


def audit_in_memory(**more: Any) -> celm.Audit:
    return celm.audit(
        random_state(0), {name: random_state(i) for i, name in enumerate("abc", start=1)}, **SETTINGS | more
    )


@dataclass(frozen=True)
class Uploads:
    """`global.safetensors` and the folder `clients` with the uploads of a, b and c."""

    folder: Path
    invoke: Callable[..., Result]

    @property
    def global_file(self) -> Path:
        return self.folder / "global.safetensors"

    @property
    def clients(self) -> Path:
        return self.folder / "clients"

    def save(self, name: str, state: dict[str, Tensor]) -> Path:
        path = self.clients / f"{name}.safetensors"
        save_file(state, path)
        return path

    def arguments(self, *more: object) -> tuple[object, ...]:
        shape = ",".join(map(str, SHAPE))
        options = (
            "--global",
            self.global_file,
            "--clients",
            self.clients,
            "--model",
            "mlp",
            "--input-shape",
            shape,
        )
        return ("audit", *options, "--classes", CLASSES, *QUICK, *more)

    def audit(self, *more: object) -> Result:
        return self.invoke(*self.arguments(*more))

    def audit_json(self, *more: object, code: int = 0) -> dict[str, Any]:
        """Return the JSON that an audit prints."""
        result = self.audit("--format", "json", *more)
        assert result.exit_code == code, (result.output, result.stderr, result.exception)
        assert "Traceback" not in result.output + result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        return document


def save_rounds(uploads: Uploads, count: int = 3) -> Path:
    rounds_folder = uploads.folder / "rounds"
    for number in range(1, count + 1):
        folder = rounds_folder / f"round-{number:03d}"
        folder.mkdir(parents=True)
        save_file(random_state(100 * number), folder / "global.safetensors")
        for seed, name in enumerate("abc", start=1):
            save_file(random_state(100 * number + seed), folder / f"{name}.safetensors")
    return rounds_folder


@pytest.fixture
def uploads(tmp_path: Path, invoke: Callable[..., Result]) -> Uploads:
    uploads = Uploads(tmp_path, invoke)
    uploads.clients.mkdir()
    save_file(random_state(0), uploads.global_file)
    for seed, name in enumerate("abc", start=1):
        uploads.save(name, random_state(seed))
    return uploads
