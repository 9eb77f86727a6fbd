"""Measure the weighted mean of models: in memory, beside its bandwidth, and of more models than fit into memory.

    python benchmarks/averaging.py [--repeats 9] [--reads 1000] [--quick]

In memory: 20 models, one thread. The mean must read every model once and write the mean once: (N + 1) x size bytes. The
bandwidth is that of a copy of the same tensors in the same turn, which moves twice the bytes it copies. The usual code,
a sum over `torch.stack`, is measured, too; it copies all models first.

From files: 1,000 clients of 100 MB, read in turn from 20 files, in a separate process. The kernel reports its peak
resident size, which includes files while they are mapped.

Targets: at most 1.5 x the time at the bandwidth; memory that does not grow with the number of clients.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from celm.base.files import dump_json, write_text
from celm.models.averaging import LazyStateDicts, weighted_mean
from timing import describe_machine, interleaved, median_and_spread, peak_megabytes, timed

MODELS = 20
SIZES = {"MLP of 0.1 million": (109_386,), "2.5 million": (2_500, 1_000), "25 million": (25_000, 1_000)}
LARGE = (25_000, 1_000)
"""Shape of a model of 100 MB in float32."""


def measure_in_memory(shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    states = [{"weight": torch.randn(shape)} for _ in range(MODELS)]
    weights = torch.rand(MODELS).tolist()
    copies = [torch.empty(shape) for _ in range(MODELS)]
    share = torch.tensor(weights) / sum(weights)

    def copy() -> None:
        for target, state in zip(copies, states, strict=True):
            target.copy_(state["weight"])

    def stacked_mean() -> torch.Tensor:
        stacked = torch.stack([state["weight"] for state in states])
        return torch.einsum("n,n...->...", share, stacked)

    torch.testing.assert_close(weighted_mean(states, weights)["weight"], stacked_mean(), rtol=1e-4, atol=1e-5)
    cases = {
        "celm": lambda: timed(weighted_mean, states, weights)[1],
        "copy": lambda: timed(copy)[1],
        "stack": lambda: timed(stacked_mean)[1],
    }
    seconds = interleaved(cases, repeats)
    limit_seconds = [copy_seconds * (MODELS + 1) / (2 * MODELS) for copy_seconds in seconds["copy"]]
    return {
        "times_the_limit": median_and_spread(
            [mine / limit for mine, limit in zip(seconds["celm"], limit_seconds, strict=True)]
        ),
        "stack_over_celm": median_and_spread(
            [usual / mine for usual, mine in zip(seconds["stack"], seconds["celm"], strict=True)]
        ),
        "gigabytes_per_second": median_and_spread(
            [MODELS * 4e-9 * torch.Size(shape).numel() / mine for mine in seconds["celm"]]
        ),
    }


def measure_from_files(reads: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        for number in range(MODELS):
            torch.manual_seed(number)
            save_file({"weight": torch.randn(LARGE)}, Path(folder) / f"{number}.safetensors")
        command = [sys.executable, __file__, "--stream", folder, "--reads", str(reads)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {"reads": reads, "seconds": float(output[0]), "peak_megabytes": float(output[1])}


def stream_mean(folder: Path, reads: int) -> None:
    """Average the files and print the seconds and the peak memory. This needs its own process."""
    paths = sorted(folder.iterdir())
    files = LazyStateDicts([paths[i % len(paths)] for i in range(reads)])
    start = time.perf_counter()
    mean = weighted_mean(files, [1.0 + i % 3 for i in range(reads)])
    seconds = time.perf_counter() - start
    assert bool(mean["weight"].isfinite().all())
    print(seconds, peak_megabytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no files")
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/bench/averaging.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stream:
        stream_mean(options.stream, options.reads)
        return
    machine_info = describe_machine()
    memory = {
        name: measure_in_memory(shape, 3 if options.quick else options.repeats)
        for name, shape in list(SIZES.items())[: 2 if options.quick else None]
    }
    for name, row in memory.items():
        print(
            f"{name}: {row['times_the_limit']['median']:.2f} x the time at the memory's bandwidth", flush=True
        )
    files = (
        [] if options.quick else [measure_from_files(reads) for reads in (options.reads // 50, options.reads)]
    )
    for row in files:
        print(f"{row['reads']} files: {row['seconds']:.1f} s, {row['peak_megabytes']:.0f} MB", flush=True)
    report = {"machine": machine_info, "models": MODELS, "in_memory": memory, "from_files": files}
    write_text(options.out, dump_json(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
