"""Who the rivals of the training benchmark are, what they are told, and how one is run.

A rival is a file in benchmarks/rivals. It reads what celm dealt from a safetensors file and its settings from a JSON
file, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from celm.base.memory import VARIABLE as LARGE_PAGES
from celm.federation.assembly import Federation

CPU_TORCH = "pip install -c constraints.txt torch numpy safetensors"
TORCHVISION = "pip install --no-deps torchvision==0.28.0"
FLOWER = "pip install -c constraints.txt -e '.[flower]'"
DEADLINE = 1800
"""Seconds after which a rival is given up."""


@dataclass(frozen=True)
class Rival:
    script: str
    package: str = ""
    """The option that names its Python; none where celm's own has all it needs."""
    install: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    """What Python runs instead of the script."""


def rivals(cores: int) -> dict[str, Rival]:
    """Each with a thread a core, PyTorch's default, and with one thread, which small models may do better with."""
    pfl = "pip install torch==2.13.0 safetensors 'pfl[pytorch]'"
    shared_out = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cores))
    fedlab = f"{CPU_TORCH} pandas scikit-learn pynvml tqdm munch pillow; {TORCHVISION} fedlab"
    in_one_process = {
        "dataloader": Rival("dataloader_loop.py", settings={"loader_workers": 0}),
        "tensors": Rival("tensor_loop.py"),
        "pfl": Rival("pfl_research.py", "pfl", pfl),
        "fedlab": Rival("fedlab_loop.py", "fedlab", fedlab),
        "fluke": Rival("fluke_loop.py", "fluke", f"{CPU_TORCH}; pip install -c constraints.txt fluke-fl"),
    }
    one_thread = {
        f"{name}, one thread": replace(rival, settings={**rival.settings, "threads": 1})
        for name, rival in in_one_process.items()
    }
    in_many = {
        "dataloader, two loading processes": Rival("dataloader_loop.py", settings={"loader_workers": 2}),
        "flower": Rival("flower_simulation.py", "flower", FLOWER, {"threads": 1}),
        "pfl, a process a core": Rival("pfl_research.py", "pfl", pfl, {"threads": 1}, shared_out),
    }
    return {**in_one_process, **one_thread, **in_many}


def play_rival(rival: Rival, python: str, data: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same in a process of its own; what it says last is kept where it fails."""
    chosen = data.with_name("settings.json")
    chosen.write_text(json.dumps({**settings, **rival.settings}))
    script = Path(__file__).parent / "rivals" / rival.script
    command = [python, *rival.launcher, str(script), str(data), str(chosen)]
    # As its users run it: what celm sets for its own processes is not handed on.
    environment = {name: value for name, value in os.environ.items() if name != LARGE_PAGES}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"failed": str(error)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if done.returncode or not lines:
        said = [f"exit code {done.returncode}", *done.stderr.splitlines()]
        return {"failed": next((line for line in reversed(said) if "Error" in line), said[-1])}
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("FOUND "))
    return found


def write_data(federation: Federation, path: Path) -> None:
    """What celm dealt, for rivals to read; in a random order, for not all of them shuffle."""
    bench, order = federation.workbench, torch.Generator().manual_seed(0)
    tensors = {f"initial/{key}": value for key, value in federation.initial.items()}
    for i, holding in enumerate(bench.holdings.values()):
        mixed = torch.randperm(len(holding.rows), generator=order)
        tensors[f"client/{i}/inputs"] = bench.inputs[holding.rows[mixed]]
        tensors[f"client/{i}/labels"] = holding.labels[mixed]
    tensors |= {"test/inputs": bench.test_inputs, "test/labels": bench.test_labels}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def settings_of(federation: Federation, rounds: int, cores: int) -> dict[str, Any]:
    """What rivals are told; some are told otherwise about threads."""
    bench = federation.workbench
    return {
        "layers": layers_in_words(bench.module),
        "clients": len(bench.holdings),
        "batch": bench.train.batch,
        "lr": bench.train.rate(1),
        "rounds": rounds,
        "threads": cores,
        "processes": cores,
    }


def layers_in_words(module: nn.Module) -> list[list[Any]]:
    """Name, kind and sizes of each layer, from which rivals build the same model."""
    return [[name, type(layer).__name__, *sizes(layer)] for name, layer in module.named_children()]


def sizes(layer: nn.Module) -> list[int]:
    match layer:
        case nn.Linear():
            return [layer.in_features, layer.out_features]
        case nn.Conv2d():
            return [layer.in_channels, layer.out_channels, layer.kernel_size[0]]
        case nn.MaxPool2d():
            return [int(layer.kernel_size)]  # type: ignore[arg-type]
        case nn.Flatten() | nn.ReLU():
            return []
    raise TypeError(f"a layer that rivals cannot be told of: {layer}")
