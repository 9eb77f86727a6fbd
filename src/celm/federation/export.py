"""A run's global model as a file for use elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from safetensors.torch import save

from celm.base.errors import CelmError
from celm.base.files import dump_json, read_tensors, write_bytes
from celm.federation.run import Run


def export_model(run: Run, path: Path, model: str | None = None) -> None:
    """By suffix: `.safetensors`, the weights with what is needed to build the model; `.pt2`, the program itself.

    For the latter the model is built: `model` is as of `Run.model`.
    """
    if path.suffix == ".safetensors":
        tensors, about = read_tensors(run.folder / "model.safetensors")
        notes = {"format": "pt", **{key: dump_json(value) for key, value in about.items()}}
        write_bytes(path, save(tensors, metadata=notes))
    elif path.suffix == ".pt2":
        module = run.model(model)
        _, about = read_tensors(run.folder / "model.safetensors")
        example = torch.zeros(2, *about["input_shape"])
        batch = torch.export.Dim("batch")
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        content = io.BytesIO()
        torch.export.save(program, content)
        write_bytes(path, content.getvalue())
    else:
        raise CelmError(f"cannot export to {path.name}", "the suffix says the form: .safetensors or .pt2")
