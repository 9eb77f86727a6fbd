"""The rivals of the training benchmark: their scripts, their settings, and their processes.

A rival is a script in benchmarks/rivals. It runs in its own process, and reads celm's partition from a safetensors file
and its settings from a JSON file.
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

from celm.base.huge_pages import THP_VARIABLE as LARGE_PAGES
from celm.federation.build import Federation

CPU_TORCH = "pip install -c constraints.txt torch numpy safetensors"
TORCHVISION = "pip install --no-deps torchvision==0.28.0"
FLOWER = "pip install -c constraints.txt -e '.[flower]'"
DEADLINE = 1800
"""Time limit of a rival, in seconds."""


@dataclass(frozen=True)
class Rival:
    script: str
    package: str = ""
    """Option that names its Python; empty if celm's own Python can run it."""
    install: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    """Arguments of Python before the script."""


def rivals(cores: int) -> dict[str, Rival]:
    """Return all rivals, with one thread per core (PyTorch's default) and with one thread (faster for small models)."""
    pfl = "pip install torch==2.13.0 safetensors 'pfl[pytorch]'"
    distributed_launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cores))
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
    multi_process = {
        "dataloader, two loading processes": Rival("dataloader_loop.py", settings={"loader_workers": 2}),
        "flower": Rival("flower_simulation.py", "flower", FLOWER, {"threads": 1}),
        "pfl, a process a core": Rival("pfl_research.py", "pfl", pfl, {"threads": 1}, distributed_launcher),
    }
    return {**in_one_process, **one_thread, **multi_process}


def run_rival(rival: Rival, python: str, data: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run a rival in its own process and return its report; after a failure, its last error message."""
    settings_path = data.with_name("settings.json")
    settings_path.write_text(json.dumps({**settings, **rival.settings}))
    script = Path(__file__).parent / "rivals" / rival.script
    command = [python, *rival.launcher, str(script), str(data), str(settings_path)]
    # Without the variable that celm sets for its own processes: users of the rival do not set it.
    environment = {name: value for name, value in os.environ.items() if name != LARGE_PAGES}
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"failed": str(error)}
    lines = [line for line in completed.stdout.splitlines() if line.startswith("FOUND ")]
    if completed.returncode or not lines:
        messages = [f"exit code {completed.returncode}", *completed.stderr.splitlines()]
        return {"failed": next((line for line in reversed(messages) if "Error" in line), messages[-1])}
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("FOUND "))
    return result


def write_data(federation: Federation, path: Path) -> None:
    """Write celm's partition for rivals, in random order because not all rivals shuffle."""
    trainer, generator = federation.trainer, torch.Generator().manual_seed(0)
    tensors = {f"initial/{key}": value for key, value in federation.initial_model.items()}
    for i, client_data in enumerate(trainer.client_data.values()):
        permutation = torch.randperm(len(client_data.rows), generator=generator)
        tensors[f"client/{i}/inputs"] = trainer.inputs[client_data.rows[permutation]]
        tensors[f"client/{i}/labels"] = client_data.labels[permutation]
    tensors |= {"test/inputs": trainer.test_inputs, "test/labels": trainer.test_labels}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def rival_settings(federation: Federation, rounds: int, cores: int) -> dict[str, Any]:
    """Return the settings of all rivals. A rival may override the number of threads."""
    trainer = federation.trainer
    return {
        "layers": describe_layers(trainer.module),
        "clients": len(trainer.client_data),
        "batch": trainer.train_config.batch,
        "lr": trainer.train_config.lr_at(1),
        "rounds": rounds,
        "threads": cores,
        "processes": cores,
    }


def describe_layers(module: nn.Module) -> list[list[Any]]:
    """Return name, kind and sizes of each layer, from which rivals build the same model."""
    return [[name, type(layer).__name__, *layer_sizes(layer)] for name, layer in module.named_children()]


def layer_sizes(layer: nn.Module) -> list[int]:
    match layer:
        case nn.Linear():
            return [layer.in_features, layer.out_features]
        case nn.Conv2d():
            return [layer.in_channels, layer.out_channels, layer.kernel_size[0]]
        case nn.MaxPool2d():
            return [int(layer.kernel_size)]  # type: ignore[arg-type]
        case nn.Flatten() | nn.ReLU():
            return []
    raise TypeError(f"unsupported layer for rivals: {layer}")
