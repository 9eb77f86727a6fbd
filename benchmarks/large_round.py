"""Measure a round of 1,000 clients with a model of 100 MB: python benchmarks/large_round.py [--clients 20 100 1000].

The model is an MLP of 24.9 million parameters. Replies are made by hand: eight models of 100 MB are in memory as bytes,
and each reply refers to one of them. So figures are those of the strategy alone; a real SuperLink would also need
memory or disk for 100 GB of replies. Strategies: Flower's FedAvg; CELM as printed in the paper; CELM with the preset
`trust`. A round after the warm-up is measured: the warm-up is one round with eight clients before. Cases `warmup`
measure a round of the warm-up itself, with a probe of 2 steps in place of 200, because memory does not depend on their
number. CELM saves state and record to disk; FedAvg has neither. Each case is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support

import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg
from tests.support.small_grid import SmallGrid, reply

from celm.flower import CelmStrategy
from celm.models import build_model
from celm.models.state_dict import get_state
from timing import describe_machine, peak_megabytes

SHAPE, CLASSES, WIDTHS = (3, 32, 32), 10, [4096, 3000]
MODELS = 8
"""Different models among the replies, and clients of the warm-up."""
CASES = {"fedavg": 1000, "paper": 1000, "trust": 1000, "paper-warmup": 100, "trust-warmup": 100}
"""Case to the largest number of clients for which it is measured."""


def make_replies(state: dict[str, torch.Tensor]) -> list[ArrayRecord]:
    """Return models that differ from `state` by a change of their own, of 2 % of each tensor's spread."""
    records = []
    for number in range(MODELS):
        generator = torch.Generator().manual_seed(number)
        changed = {
            name: tensor + 0.02 * tensor.std() * torch.randn(tensor.shape, generator=generator)
            for name, tensor in state.items()
        }
        records.append(ArrayRecord({name: Array(tensor.numpy()) for name, tensor in changed.items()}))
    return records


def measure(case: str, clients: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)
    state = get_state(model)
    records = make_replies(state)

    def answer(number: int) -> Callable[[Message], Message]:
        return lambda message: reply(message, records[number % MODELS], num_examples=100)

    grid = SmallGrid({f"client-{number}": answer(number) for number in range(clients)})
    strategy_name, _, stage = case.partition("-")
    everyone = set(grid.online)
    rounds = 1 if stage or case == "fedavg" else 2
    if rounds == 2:
        grid.online = {f"client-{number}" for number in range(MODELS)}
    spent: dict[str, dict[str, float]] = {}

    def measured(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            result = function(*arguments)
            spent[name] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            return result

        return call

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number == rounds - 1:
            grid.online, spent["before"] = everyone, {"peak_megabytes": peak_megabytes()}

    with tempfile.TemporaryDirectory() as folder:
        strategy: Any
        if case == "fedavg":
            strategy = FedAvg(fraction_evaluate=0.0)
        else:
            strategy = CelmStrategy(
                model,
                SHAPE,
                CLASSES,
                preset="trust" if strategy_name == "trust" else None,
                rule_options={"warmup": 1, "min_warmup": 1},
                probe={"steps": 2},
                folder=Path(folder) / "state",
                fraction_evaluate=0.0,
            )
        strategy.configure_train = measured("configure", strategy.configure_train)
        strategy.aggregate_train = measured("aggregate", strategy.aggregate_train)
        strategy.start(grid, ArrayRecord(state), num_rounds=rounds, evaluate_fn=evaluate)
        lines = Path(folder) / "state" / "times.jsonl"
        stages = json.loads(lines.read_text().splitlines()[-1]) if lines.exists() else {}
    return {
        "clients": clients,
        "megabytes_per_model": sum(tensor.nbytes for tensor in state.values()) / 1e6,
        "cpu_seconds": spent["configure"]["cpu"] + spent["aggregate"]["cpu"],
        "wall_seconds": spent["configure"]["wall"] + spent["aggregate"]["wall"],
        "stages": stages,
        "peak_megabytes_before": spent["before"]["peak_megabytes"],
        "peak_megabytes": peak_megabytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100, 1000])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("results/bench/large_round.json"))
    parser.add_argument("--only", nargs=2, metavar=("CASE", "CLIENTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        print("FOUND " + json.dumps(measure(options.only[0], int(options.only[1]))))
        return
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    report.setdefault("machine", describe_machine())
    for clients in options.clients:
        for case in options.cases:
            name = f"{case}, {clients} clients"
            if name in report or clients > CASES[case]:
                continue
            command = [sys.executable, __file__, "--only", case, str(clients)]
            completed = subprocess.run(command, capture_output=True, text=True, check=False)
            found = [line for line in completed.stdout.splitlines() if line.startswith("FOUND ")]
            if not found:
                raise RuntimeError(f"{name}: exit code {completed.returncode}\n{completed.stderr[-3000:]}")
            report[name] = json.loads(found[0].removeprefix("FOUND "))
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            print(name, json.dumps(report[name]), flush=True)


if __name__ == "__main__":
    main()
