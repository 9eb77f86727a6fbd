"""Run a federation of 50 nodes on one machine, 5 of which fail: python benchmarks/many_nodes.py [--nodes 50].

One SuperLink and 50 SuperNodes run as real processes on loopback, without TLS. Clients train a 784-128-64-10 MLP in
NumPy (`many_nodes_app/`). In 10 rounds, 5 nodes drawn at random are killed with SIGKILL (SuperNode and ClientApp), each
in a round and at a moment drawn at random. First the server runs CELM with its defaults, so with the preset `trust`,
five rounds of warm-up and a state folder. Then the killed nodes are replaced and it runs Flower's FedAvg, with failures
in the same rounds. The script fails unless the federation finishes and the record is whole: the hash chain holds,
`celm audit-verify` accepts it, and each node that was asked in a round has a weight or a reason for its exclusion.
Flower gives a process 30 seconds to start a task; here it is 600 (`many_nodes_app/patience`), because all nodes begin
at once. Reported are the processor time of the strategy in each round, and peak memory of ServerApp, SuperLink, nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support

from tests.support.deployment import BIN, Deployment, deployment

from celm.records.hash_chain import verify_chain
from timing import describe_machine

APP = Path(__file__).parent / "many_nodes_app"
MINUTES = 45
"""Time limit of one federation."""
LONGEST_DELAY = 15.0
"""Seconds after the end of the previous round within which a node is killed."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def memory_of(pid: int, field: str) -> float:
    """Return VmHWM (peak) or VmRSS (now) of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no {field}")


def draw_failures(nodes: int, failing: int, rounds: int, seed: int) -> list[tuple[int, int, float]]:
    """Return round, node and delay in seconds of each failure, by round."""
    generator = random.Random(seed)
    victims = generator.sample(range(nodes), failing)
    return sorted(
        (generator.randint(2, rounds - 1), node, generator.uniform(0, LONGEST_DELAY)) for node in victims
    )


def run_federation(
    place: Deployment, strategy: str, failures: list[tuple[int, int, float]], options: argparse.Namespace
) -> dict[str, Any]:
    """Run one federation and kill its nodes; return figures of the server."""
    log, state = place.folder / f"{strategy}.jsonl", place.folder / f"state-{strategy}"
    settings = {"nodes": options.nodes, "rounds": options.rounds, "seed": options.seed}
    process = place.run(strategy, APP, strategy=strategy, state=state, log=log, **settings)
    start, waiting = time.monotonic(), list(failures)
    while process.poll() is None:
        if time.monotonic() - start > 60 * MINUTES:
            raise RuntimeError(f"no end within {MINUTES} minutes: {place.log(strategy)[-3000:]}")
        done = len(read_lines(log)) - 1
        while waiting and done >= waiting[0][0] - 1:
            _, node, delay = waiting.pop(0)
            time.sleep(delay)
            place.stop(f"node-{node}")
        time.sleep(1)
    if process.returncode or waiting:
        raise RuntimeError(place.log(strategy)[-3000:])
    lines = read_lines(log)
    spent = [sum(line[stage]["cpu"] for stage in ("configure", "aggregate")) for line in lines[1:]]
    return {
        "rounds": len(spent),
        "cpu_seconds": spent,
        "cpu_seconds_median": median(spent),
        "aggregate_wall_seconds": [line["aggregate"]["wall"] for line in lines[1:]],
        "round_seconds_median": median(after["time"] - before["time"] for before, after in pairwise(lines)),
        "server_app_peak_megabytes": lines[-1]["peak_megabytes"],
        "server_app_megabytes_before": lines[0]["peak_megabytes"],
        "super_link_peak_megabytes": memory_of(place.processes["superlink"].pid, "VmHWM"),
        "accuracy": [line["accuracy"] for line in lines],
    }


def check_record(state: Path, rounds: int) -> dict[str, Any]:
    """Return what the record says of the rounds. Raise an error if it is not whole."""
    records = verify_chain(state / "rounds.jsonl")
    if [record["round"] for record in records] != list(range(1, rounds + 1)):
        raise RuntimeError(f"{state}: {len(records)} of {rounds} rounds")
    for record in records:
        if sorted(record["asked"]) != sorted([*record["weights"], *record["excluded"]]):
            raise RuntimeError(f"{state}: round {record['round']}: a node has neither weight nor reason")
    commands = {
        name: subprocess.run(
            [str(BIN / "celm"), name, str(state)], capture_output=True, text=True, check=False
        )
        for name in ("audit-verify", "check")
    }
    if commands["audit-verify"].returncode or commands["check"].returncode not in (0, 4):
        raise RuntimeError("\n".join(done.stdout + done.stderr for done in commands.values()))
    return {
        "asked": [len(record["asked"]) for record in records],
        "used": [len(record["weights"]) for record in records],
        "excluded": [record["excluded"] for record in records],
        "flags": [record["flags"] for record in records],
        "audit_verify": commands["audit-verify"].stdout.replace(str(state), "STATE"),
        "check": commands["check"].stdout.replace(str(state), "STATE"),
        "check_exit_code": commands["check"].returncode,
        "client_app_peak_megabytes": records[-1]["metrics"]["peak-megabytes"],
        "bytes": sum(path.stat().st_size for path in state.glob("*.jsonl")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--failing", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategies", nargs="+", default=["celm", "fedavg"])
    parser.add_argument("--out", type=Path, default=Path("results/bench/many_nodes.json"))
    options = parser.parse_args()
    patience = str(APP / "patience")
    os.environ["TASK_SECONDS"] = "600"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [patience, os.environ.get("PYTHONPATH")]))
    failures = draw_failures(options.nodes, options.failing, options.rounds, options.seed)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "nodes": options.nodes,
        "rounds": options.rounds,
        "failures": [{"round": number, "node": node} for number, node, _ in failures],
    }
    with tempfile.TemporaryDirectory() as folder, deployment(Path(folder)) as place:
        # In memory: a database in a file was locked when many nodes replied at once.
        place.superlink(":flwr-in-memory:")
        for strategy in options.strategies:
            for node in range(options.nodes):
                if f"node-{node}" not in place.processes:  # at first, and after it was killed
                    place.supernode(f"node-{node}", node, options.nodes)
                    time.sleep(0.5)
            report[strategy] = run_federation(place, strategy, failures, options)
            nodes = [place.processes[name].pid for name in place.processes if name.startswith("node-")]
            report[strategy]["super_node_megabytes"] = median(memory_of(pid, "VmRSS") for pid in nodes)
            if strategy != "fedavg":
                report["record"] = check_record(place.folder / f"state-{strategy}", options.rounds)
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            print(strategy, json.dumps(report[strategy]), flush=True)


if __name__ == "__main__":
    main()
