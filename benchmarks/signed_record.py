"""Measure what a signed record costs: the server in each round, at a restart, and each member.

    python benchmarks/signed_record.py [--clients 5 1000] [--rounds 100] [--out results/bench/signed_record.json]

Lines are those of a live federation with 10 classes in which every client answers and returns the head that it kept.
All times are processor time of one process, so that other work on the machine matters little. Medians over the rounds:

sign            the leaves of the round, the head, and its line in heads.jsonl
send            the newest head with its consistency proofs, for all clients together
check           what one member does with it: signatures, consistency with the kept head, two files
restart         reading the heads, and the tree of all rounds from rounds.jsonl
proof, verify   `celm audit-verify --proof` after that, and `celm verify-proof`, without the start of Python
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from celm.base.digests import bytes_sha256
from celm.base.files import dump_json, write_text
from celm.live.record_signer import RecordSigner
from celm.records.hash_chain import GENESIS, ChainFile
from celm.records.signed.head_log import HEADS_FILE, HeadLog
from celm.records.signed.kept_heads import KeptHeads
from celm.records.signed.keys import SigningKey
from celm.records.signed.leaves import make_salt
from celm.records.signed.proofs import verify_proof
from timing import describe_machine

CLASSES = 10
Result = TypeVar("Result")


def make_line(number: int, clients: list[str], previous: str, echoed: str | None) -> dict[str, Any]:
    """Return a line of rounds.jsonl with the keys of a live federation under the preset `trust`."""
    generator = np.random.default_rng(number)
    shares = dict(zip(clients, generator.dirichlet(np.ones(len(clients))).tolist(), strict=True))
    rows = generator.random((len(clients), CLASSES)).tolist()
    digests = {client: bytes_sha256(f"{number} {client}".encode()) for client in clients}
    return {
        "schema_version": 1,
        "round": number,
        "time": "2026-11-19T00:00:00+00:00",
        "asked": clients,
        "absent": [],
        "keys": {client: f"key-{digests[client][:16]}" for client in clients},
        "amendments": [],
        "received": {client: {"sha256": digest, "samples": 600} for client, digest in digests.items()},
        "excluded": {},
        "unexpected": [],
        **dict.fromkeys(("weights", "client_weights", "scores", "earned"), shares),
        "evidence": dict(zip(clients, rows, strict=True)),
        "diagnostics": {"idle": [], "movement": shares},
        "flags": {},
        "clipped": {},
        "metrics": {"loss": 1.5},
        "metrics_excluded": {},
        "witnesses": dict.fromkeys(clients, echoed) if echoed else {},
        **dict.fromkeys(("start", "model", "settings"), GENESIS),
        "versions": {"celm": "0.1.0", "flwr": "1.41.0", "torch": "2.13.0", "python": "3.11.7"},
        "salt": make_salt(),
        "previous": previous,
    }


def processor_time(function: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    """Return the result of a call, and its processor time in seconds."""
    start = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - start


def measure(num_clients: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return medians in milliseconds, and sizes in bytes."""
    clients = [f"client-{i}" for i in range(num_clients)]
    key, path = SigningKey.make(), folder / "rounds.jsonl"
    (folder / "member").mkdir()
    member = KeptHeads(folder / "member", key.public)
    signer = RecordSigner(key)
    signer.open(folder, ChainFile.parse(path, None))
    times: dict[str, list[float]] = {name: [] for name in ("sign", "send", "check")}
    lines: list[str] = []
    previous, echoed, message = GENESIS, None, ""
    for number in range(1, rounds + 1):
        line = make_line(number, clients, previous, echoed)
        lines.append(dump_json(line))
        previous = bytes_sha256(lines[-1].encode())
        times["sign"].append(processor_time(signer.sign_round, line, previous)[1])
        updates, seconds = processor_time(signer.head_updates, clients)
        times["send"].append(seconds)
        message = updates[clients[0]]
        head, seconds = processor_time(member.accept, json.loads(message))
        times["check"].append(seconds)
        echoed = head.digest
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(content)
    chain = ChainFile.parse(path, content)
    log, restart = processor_time(HeadLog.read, folder, chain)
    document, proof = processor_time(log.make_proof, chain, (clients[0], rounds // 2), rounds // 4)
    document = json.loads(dump_json(document))
    _, verify = processor_time(verify_proof, document, key.public, "the proof")
    return {
        "clients": num_clients,
        "rounds": rounds,
        "milliseconds": {
            **{name: 1000 * median(values) for name, values in times.items()},
            **{"restart": 1000 * restart, "proof": 1000 * proof, "verify": 1000 * verify},
        },
        "bytes": {
            "message": len(message),
            "head": (folder / HEADS_FILE).stat().st_size // rounds,
            "line": len(content) // rounds,
            "proof": len(dump_json(document)),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 1000])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/bench/signed_record.json"))
    options = parser.parse_args()
    machine, points = describe_machine(), []
    for num_clients in options.clients:
        with TemporaryDirectory() as folder:
            points.append(measure(num_clients, options.rounds, Path(folder)))
        shown = ", ".join(f"{name} {value:.2f}" for name, value in points[-1]["milliseconds"].items())
        print(f"{num_clients} clients, ms: {shown}; bytes: {points[-1]['bytes']}", flush=True)
    write_text(options.out, dump_json({"machine": machine, "points": points}, indent=1) + "\n")


if __name__ == "__main__":
    main()
