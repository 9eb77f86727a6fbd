"""What an operator gets if one member idles from round 6 on and another sends NaN: results/flower/consortium.py.

A real deployment on loopback as in `behaviours.py`: a SuperLink with TLS, five SuperNodes with registered keys, and
12 rounds of the app in `members/`. `east` is idle from round 6 on, `west` sends NaN in every round. A local HTTP server
receives the alerts. Then commands of docs/runbook.md run on the state folder. Everything goes into `consortium/`: the
record, the alerts as received, and each command with its output. About five minutes on two cores.

With `--in-process`, the app's ServerApp and ClientApps run in this process, with Flower's messages but no SuperLink
and no SuperNodes: for a machine that is so busy that Flower's heartbeats come too late.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

from behaviours import APP, NAMES, ROUNDS, SEED
from flwr.app import Context, RecordDict
from tests.support.deployment import BIN, PATIENCE, deployment
from tests.support.http_receiver import http_receiver
from tests.support.small_grid import Client, SmallGrid

_Config = dict[str, bool | float | int | str]
OUT = Path(__file__).with_suffix("")
BEHAVIOURS = {"east": "idle", "west": "nan"}
RECORD = ("settings.json", "names.json", "rounds.jsonl", "evaluations.jsonl", "times.jsonl", "metrics.prom")
"""Files of the state folder that are saved; checkpoints are not."""
COMMANDS = (
    "celm check consortium",
    "celm check consortium --format json",
    "celm payout consortium --budget 10000",
    "celm payout consortium --budget 10000 --scheme floor",
    "celm payout consortium --budget 10000 --scheme participation",
    "celm audit-verify consortium",
)


def run_federation(folder: Path) -> list[dict[str, object]]:
    """Run the federation in `folder`, with its state in `folder/consortium`. Return the alerts as received."""
    os.environ["no_proxy"] = "127.0.0.1"
    with http_receiver() as (url, received), deployment(folder, secure=True) as place:
        place.superlink()
        for partition, name in enumerate(NAMES):
            more = {"behaviour": BEHAVIOURS[name]} if name in BEHAVIOURS else {}
            place.supernode(name, partition, len(NAMES), place.key(name), **more)
        state = folder / "consortium"
        process = place.run("run", APP, rounds=ROUNDS, seed=SEED, state=state, webhook=f"{url}/hooks/celm")
        if process.wait(4 * PATIENCE):
            raise RuntimeError(place.log("run"))
        return [dict(message["body"]) for message in received]


def run_in_process(folder: Path) -> list[dict[str, object]]:
    """Do the same without SuperLink and SuperNodes: the grid calls the app's functions."""
    sys.path.insert(0, str(APP))
    client_app, server_app = (import_module(f"members.{name}") for name in ("client_app", "server_app"))
    os.environ["no_proxy"] = "127.0.0.1"

    def member(partition: int, name: str, run_config: _Config) -> Client:
        node_config: _Config = {"partition-id": partition, "behaviour": BEHAVIOURS.get(name, "honest")}
        return partial(client_app.fit, context=Context(1, partition, node_config, RecordDict(), run_config))

    with http_receiver() as (url, received):
        state, webhook = str(folder / "consortium"), f"{url}/hooks/celm"
        config: _Config = {
            "rounds": ROUNDS,
            "seed": SEED,
            "behaviour": "honest",
            "state": state,
            "webhook": webhook,
        }
        grid = SmallGrid({name: member(partition, name, config) for partition, name in enumerate(NAMES)})
        server_app.main(grid, Context(1, 0, {}, RecordDict(), config))
        return [dict(message["body"]) for message in received]


def run_command(command: str, folder: Path) -> str:
    """Return a command with its output and exit code, as a terminal of 120 columns shows them."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "PATH": path}
    done = subprocess.run(
        command.split(), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return f"$ {command}\n{done.stdout}{done.stderr}[exit code {done.returncode}]\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-process", action="store_true", help="without SuperLink and SuperNodes")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    alerts = (run_in_process if options.in_process else run_federation)(folder)
    state = folder / "consortium"
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    for name in RECORD:
        shutil.copyfile(state / name, OUT / name)
    page = (state / "report.html").read_text(encoding="utf-8").replace(str(folder), "/var/lib/celm")
    (OUT / "report.html").write_text(page, encoding="utf-8")
    shown = [{**alert, "folder": "consortium"} for alert in alerts]
    (OUT / "alerts.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    output = "\n".join(run_command(command, folder) for command in COMMANDS)
    (OUT / "commands.txt").write_text(output.replace(str(folder), "/var/lib/celm"), encoding="utf-8")
    print(output)


if __name__ == "__main__":
    main()
