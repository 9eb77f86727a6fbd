"""Export the global model of a run to a file for other programs."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from safetensors.torch import save

from celm.base.errors import CelmError
from celm.base.files import dump_json, read_tensors, write_bytes
from celm.models.text_classifier import TextClassifier
from celm.runs.run import Run


def export_model(run: Run, path: Path, model: str | None = None) -> None:
    """Write the global model in the format of the suffix of `path`.

    `.safetensors` has the weights and the metadata to build the model. `.pt2` has the program for `torch.export.load`;
    it is built first, with `model` as in `Run.model`.
    """
    if path.suffix == ".safetensors":
        tensors, metadata = read_tensors(run.folder / "model.safetensors")
        text_metadata = {"format": "pt", **{key: dump_json(value) for key, value in metadata.items()}}
        write_bytes(path, save(tensors, metadata=text_metadata))
    elif path.suffix == ".pt2":
        module = run.model(model)
        _, metadata = read_tensors(run.folder / "model.safetensors")
        dtype = torch.int64 if isinstance(module, TextClassifier) else torch.float32
        example = torch.zeros(2, *metadata["input_shape"], dtype=dtype)
        batch = torch.export.Dim("batch")
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        content = io.BytesIO()
        torch.export.save(program, content)
        write_bytes(path, content.getvalue())
    else:
        raise CelmError(f"cannot export to {path.name}: unknown format", "use .safetensors or .pt2")
