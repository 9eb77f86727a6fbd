"""Measure the peak memory of an audit of many large models: 50 clients with a model of 100 MB.

    python benchmarks/audit_memory.py [--clients 50]

The model is an MLP of 25 million parameters. Files are written one by one. Then `celm audit` runs in its own process,
and the kernel reports the peak resident size (ru_maxrss). A few probe steps suffice, because memory does not depend on
their number. An audit of 5 clients shows that memory does not depend on the number of clients either.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from celm.models import build_model
from celm.models.state_dict import get_state

SHAPE, CLASSES, WIDTHS = (3, 32, 32), 10, [4096, 3000]
STEPS = 2
PEAK_SCRIPT = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def write_models(folder: Path, clients: int) -> int:
    """Write the global model and client models, which differ in one tensor. Return the bytes of a file."""
    torch.manual_seed(0)
    state = get_state(build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES))
    save_file(state, folder / "global.safetensors")
    (folder / "clients").mkdir()
    for number in range(clients):
        head = torch.randn(state["head.weight"].shape)
        save_file(state | {"head.weight": head}, folder / "clients" / f"client-{number}.safetensors")
    return (folder / "global.safetensors").stat().st_size


def measure(clients: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size = write_models(folder, clients)
        command = [sys.executable, "-m", "celm", "audit", "--global", str(folder / "global.safetensors")]
        command += [
            "--clients",
            str(folder / "clients"),
            "--model",
            "mlp",
            "--set",
            f"options.widths={WIDTHS}",
        ]
        command += ["--input-shape", ",".join(map(str, SHAPE)), "--classes", str(CLASSES)]
        command += [
            "--preset",
            "none",
            "--set",
            f"probe.steps={STEPS}",
            "--out",
            str(folder / "audit"),
            "--format",
            "json",
        ]
        started = time.perf_counter()
        completed = subprocess.run(
            [sys.executable, "-c", PEAK_SCRIPT, *command], capture_output=True, text=True, check=True
        )
        code, peak = map(int, completed.stdout.split())
        assert code == 0, completed.stderr
        unit = 1 if sys.platform == "darwin" else 1024
        return {
            "clients": clients,
            "model_megabytes": round(size / 1e6, 1),
            "peak_resident_megabytes": round(peak * unit / 1e6, 1),
            "seconds": round(time.perf_counter() - started, 1),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("results/bench/audit_memory.json"))
    options = parser.parse_args()
    rows = []
    for clients in (5, options.clients):
        rows.append(measure(clients))
        print(rows[-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
