"""How much memory an audit of many large models takes: 50 clients of a model of 100 MB, resident at its peak.

    python benchmarks/audit_memory.py [--clients 50]

The model is an MLP of 25 million parameters. Files are written one by one, then `celm audit` runs in a process of its
own, whose peak resident size is what the kernel counted (ru_maxrss). A few probe steps suffice: memory does not depend
on their number. The same with 5 clients shows that it does not depend on theirs.
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
from celm.models.state import state_of

SHAPE, CLASSES, WIDTHS = (3, 32, 32), 10, [4096, 3000]
STEPS = 2
PEAK = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def write_models(folder: Path, clients: int) -> int:
    """The global model and the clients', the same but for one tensor; returns the bytes of a file."""
    torch.manual_seed(0)
    state = state_of(build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES))
    save_file(state, folder / "global.safetensors")
    (folder / "clients").mkdir()
    for number in range(clients):
        head = torch.randn(state["head.weight"].shape)
        save_file(state | {"head.weight": head}, folder / "clients" / f"client-{number}.safetensors")
    return (folder / "global.safetensors").stat().st_size


def measure(clients: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
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
        command += ["--set", f"probe.steps={STEPS}", "--out", str(folder / "audit"), "--format", "json"]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *command], capture_output=True, text=True, check=True
        )
        code, peak = map(int, done.stdout.split())
        assert code == 0, done.stderr
        unit = 1 if sys.platform == "darwin" else 1024
        return {
            "clients": clients,
            "model_megabytes": round(size / 1e6, 1),
            "peak_resident_megabytes": round(peak * unit / 1e6, 1),
            "seconds": round(time.perf_counter() - start, 1),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("results/bench/audit_memory.json"))
    given = parser.parse_args()
    found = []
    for clients in (5, given.clients):
        found.append(measure(clients))
        print(found[-1], flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
