"""Measure memory and CPU time of the worst hostile file of each format, beside an honest file.

    python benchmarks/hostile_files.py

Checkpoints are read as `celm audit` reads the file of a client, with an MLP of 2.5 million parameters (10 MB). A
configuration is built with a small ViT as the global model. Records are read as `celm report` and `celm audit-verify`
read those of a folder. Each file is read by a process of its own, forked from one that has imported everything. The
figures are its CPU time, and how far its peak resident size rises above that of the parent, including the file's bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import celm
from celm.auditing.checkpoint_reader import (
    MAX_OVERHEAD,
    max_file_bytes,
    max_file_tensors,
    parse_checkpoint,
    take_snapshot,
)
from celm.auditing.verify import verify_audit
from celm.base.errors import CelmError
from celm.base.files import write_text
from celm.models import build_model
from celm.models.hugging_face import build_from_folder
from celm.models.state_dict import get_state
from celm.models.state_matching import match_state
from celm.records.run_files import RunFiles

SHAPE, CLASSES, WIDTHS = (3, 32, 32), 10, [800]
VIT_FIELDS: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 128, "num_labels": CLASSES,
    "architectures": ["ViTForImageClassification"],
}  # fmt: skip
VIT = transformers.ViTConfig(**VIT_FIELDS)
MIXTRAL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForSequenceClassification"],
    "num_local_experts": 1 << 22,
}
MIXTRAL |= {"hidden_size": 2, "intermediate_size": 1, "num_hidden_layers": 2, "num_attention_heads": 1}
MIXTRAL |= {"num_key_value_heads": 1, "vocab_size": 2}
RECORD_VALUES = 2_000_000

State = dict[str, Tensor]
Act = Callable[[Path], object]


def in_child(work: Callable[[], object]) -> dict[str, Any]:
    """Do the work in a forked process; return its outcome, peak megabytes above the start, and CPU seconds."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            try:
                outcome = "read" if work() is not False else "problem reported"
            except CelmError as error:
                outcome = f"refused: {error}"[:150]
            usage = getrusage(RUSAGE_SELF)
            peak = max(0.0, usage.ru_maxrss * 1024 - resident)
            costs = {
                "peak_megabytes": round(peak / 1e6, 1),
                "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
            }
            os.write(writer, json.dumps({"outcome": outcome, **costs}).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit("a process that read a file failed")
    figures: dict[str, Any] = json.loads(content)
    return figures


# --- checkpoints --------------------------------------------------------------------------------------------


def read_checkpoint(path: Path, reference: State) -> None:
    """Read a file as the audit does that of a client."""
    content = take_snapshot(path, max_file_bytes(reference)).content
    tensors = parse_checkpoint(content, path.suffix, max_file_bytes(reference), max_file_tensors(reference))
    match_state(tensors, reference, {}, {})


def filler(state: State) -> State:
    """Return a tensor that makes the file of `state` as large as the audit reads it at most."""
    numel = sum(tensor.numel() for tensor in state.values())
    return {"more": torch.zeros((MAX_OVERHEAD + 20 * numel - (1 << 20)) // 4)}


def empty_tensors(path: Path, count: int) -> None:
    entries = ",".join(f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(count))
    path.write_bytes(struct.pack("<Q", len(entries) + 2) + f"{{{entries}}}".encode())


def save_npz(path: Path, state: State, compressed: bool = False) -> None:
    save = np.savez_compressed if compressed else np.savez
    save(path, **{name: tensor.numpy() for name, tensor in state.items()})  # type: ignore[arg-type]


def write_pickle(path: Path, program: bytes) -> None:
    """Write a PyTorch archive with this program."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")


def write_entries(path: Path, count: int) -> None:
    """Write a PyTorch archive with many empty entries beside a model."""
    torch.save({"a": torch.zeros(1)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(count):
            archive.writestr(f"{number}", b"")


def checkpoint_files(state: State) -> Iterator[tuple[str, str, str, Act]]:
    """Yield format, name of the file, what it is, and how it is written."""
    large = state | filler(state)
    yield "safetensors", "honest.safetensors", "honest", lambda path: save_file(state, path)
    yield "safetensors", "a.safetensors", "a million tensors", lambda path: empty_tensors(path, 1_000_000)
    allowed = max_file_tensors(state)
    yield (
        "safetensors",
        "b.safetensors",
        "as many tensors as allowed",
        lambda path: empty_tensors(path, allowed),
    )
    yield "safetensors", "c.safetensors", "as large as allowed", lambda path: save_file(large, path)
    yield "npz", "honest.npz", "honest", lambda path: save_npz(path, state)
    yield "npz", "a.npz", "as large as allowed", lambda path: save_npz(path, large)
    yield "npz", "b.npz", "compressed, 125 MB unpacked", lambda path: save_npz(path, large, compressed=True)
    yield "npz", "c.npz", "90,000 entries", lambda path: write_entries(path, 90_000)
    yield "pt", "honest.pt", "honest", lambda path: torch.save(state, path)
    yield "pt", "a.pt", "as large as allowed", lambda path: torch.save(large, path)
    yield "pt", "b.pt", "90,000 entries", lambda path: write_entries(path, 90_000)
    yield (
        "pt",
        "c.pt",
        "half a million opcodes",
        lambda path: write_pickle(path, b"\x80\x02" + b"]" * 499_000 + b"."),
    )
    yield (
        "pt",
        "d.pt",
        "eight million opcodes",
        lambda path: write_pickle(path, b"\x80\x02" + b"]" * 8_000_000 + b"."),
    )


# --- configurations and records -----------------------------------------------------------------------------


def configurations() -> dict[str, dict[str, Any]]:
    """Return fields that replace those of an honest configuration."""
    return {
        "honest": {},
        "num_labels of a billion": {"num_labels": 10**9, "id2label": None, "label2id": None},
        "num_labels as allowed": {"num_labels": 100_000, "id2label": None, "label2id": None},
        "layers as allowed": {"num_hidden_layers": 10_000},
        "300,000 names of labels": {
            "id2label": {str(number): "x" for number in range(300_000)},
            "label2id": None,
        },
        "four million experts": MIXTRAL,
    }


def write_configuration(folder: Path, fields: dict[str, Any]) -> None:
    folder.mkdir()
    VIT.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def measure_record(name: str, path: Path, read: Callable[[], object]) -> dict[str, Any]:
    size = {"file_megabytes": round(path.stat().st_size / 1e6, 1)}
    return {"format": "records", "file": name, **size, **in_child(read)}


def measure_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of the records of a run and of an audit, and of records that are far too long."""
    small = {"split": {"name": "iid", "clients": 2}, "model": {"name": "mlp", "widths": [4]}}
    run = celm.run(celm.Experiment(**small, rule="fedavg", run={"rounds": 2}), folder / "run").folder
    result = run / "result.json"

    def read_run() -> None:
        RunFiles.open(run).read_finished()

    yield measure_record("honest result.json", result, read_run)
    long_result = json.loads(result.read_text()) | {"per_class": list(range(RECORD_VALUES))}
    result.write_text(json.dumps(long_result))
    yield measure_record("result.json with two million numbers", result, read_run)
    result.write_text('{"a":' * 50_000 + "1" + "}" * 50_000)
    yield measure_record("result.json nested 50,000 times", result, read_run)
    (folder / "uploads").mkdir()
    for name in "gab":
        save_file(
            get_state(build_model("mlp", {"widths": [4]}, (1, 2, 3), 3)),
            folder / f"uploads/{name}.safetensors",
        )
    start = (folder / "uploads" / "g.safetensors").rename(folder / "g.safetensors")
    settings: dict[str, Any] = {
        "model": "mlp",
        "options": {"widths": [4]},
        "input_shape": (1, 2, 3),
        "classes": 3,
    }
    celm.audit(start, folder / "uploads", **settings, probe={"steps": 2}, out=folder / "audit")
    path = folder / "audit" / "ledger.json"

    def verify() -> bool:
        return not verify_audit(folder / "audit")

    yield measure_record("honest ledger.json", path, verify)
    ledger = json.loads(path.read_text())
    path.write_text(json.dumps(ledger | {"files": [ledger["files"][0] | {"path": "missing"}] * 100_000}))
    yield measure_record("ledger.json with 100,000 entries", path, verify)


def measure_all(folder: Path) -> Iterator[dict[str, Any]]:
    state = get_state(build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES))
    for format_name, file_name, description, write in checkpoint_files(state):
        path = folder / file_name
        in_child(lambda path=path, write=write: write(path))  # type: ignore[misc]
        size = {"file_megabytes": round(path.stat().st_size / 1e6, 1)}
        figures = in_child(lambda path=path: read_checkpoint(path, state))  # type: ignore[misc]
        yield {"format": format_name, "file": description, **size, **figures}
        path.unlink()
    transformers.ViTForImageClassification(VIT).save_pretrained(folder / "vit")
    reference = load_file(folder / "vit" / "model.safetensors")
    for number, (description, fields) in enumerate(configurations().items()):
        place = folder / f"configuration-{number}"
        write_configuration(place, fields)
        size = {"file_megabytes": round((place / "config.json").stat().st_size / 1e6, 1)}
        figures = in_child(lambda place=place: build_from_folder(str(place), {}, reference))  # type: ignore[misc]
        yield {"format": "config.json", "file": description, **size, **figures}
    yield from measure_records(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench/hostile_files.json"))
    options = parser.parse_args()
    out = options.out.resolve()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        for row in measure_all(Path()):
            print(row, flush=True)
            rows.append(row)
    write_text(out, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
