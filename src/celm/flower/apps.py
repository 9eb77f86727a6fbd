"""A whole experiment as ready Flower apps: nodes do the clients' jobs, the server plays the rounds.

    [tool.flwr.app.components]
    serverapp = "celm.flower.apps:server"
    clientapp = "celm.flower.apps:client"

    [tool.flwr.app.config]
    experiment = "/absolute/path/to/experiment.toml"
    out = "/absolute/path/to/run"

A job is a function of what is in it, so any node can do any client's, and the numbers are those of the local engine.
This is for experiments, where every node can deal the whole dataset; where clients hold their own data, use
`celm.flower.CelmStrategy`.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from celm.base.errors import CelmError
from celm.engines.in_process import InProcess
from celm.engines.launch import carry_out
from celm.engines.workers import from_bytes, to_bytes, unwrapped
from celm.federation.assembly import Federation, assemble
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder
from celm.federation.jobs import Job, Outcome, Set
from celm.models.state import StateDict, shown

PATIENCE = 0.1
"""Seconds between two looks for replies."""

client = ClientApp()
server = ServerApp()


class Nodes:
    """Flower's nodes as an engine: jobs go round, one message each. The server evaluates."""

    def __init__(self, grid: Grid, federation: Federation, stopped: threading.Event | None = None) -> None:
        self.grid = grid
        self.federation = federation
        self.settings = federation.experiment.to_toml()
        self.here = InProcess(federation.workbench)
        self.stopped = stopped or threading.Event()

    def work(self, jobs: Sequence[Job]) -> list[Outcome]:
        self.go_on()
        nodes = itertools.cycle(self.nodes())
        messages = [self.message(job, next(nodes)) for job in jobs]
        replies = self.exchange(messages)
        memory = self.federation.workbench.objective.memory_type
        return [from_bytes(unwrapped(reply), Outcome, {"memory": memory}) for reply in replies]

    def evaluate(self, models: Sequence[StateDict], on: Set = "test") -> list[Tensor]:
        return self.here.evaluate(models, on)

    def close(self) -> None:
        pass

    def nodes(self) -> list[int]:
        while not (found := sorted(self.grid.get_node_ids())):
            self.pause()
        return found

    def message(self, job: Job, node: int) -> Message:
        content = ConfigRecord({"settings": self.settings, "job": to_bytes("work", job)})
        return Message(RecordDict({"work": content}), node, MessageType.TRAIN)

    def exchange(self, messages: Sequence[Message]) -> list[bytes]:
        """What came back for each message, in their order."""
        waiting = set(self.grid.push_messages(messages))
        replies: dict[str, bytes] = {}
        while waiting:
            for reply in self.grid.pull_messages(waiting):
                if reply.has_error():
                    raise CelmError(f"a node failed: {shown(reply.error.reason, 300)}")
                replies[reply.metadata.reply_to_message_id] = outcome_in(reply)
            waiting -= set(replies)
            if waiting:
                self.pause()
        return [replies[message.metadata.message_id] for message in messages]

    def go_on(self) -> None:
        if self.stopped.is_set():
            raise CelmError("stopped")

    def pause(self) -> None:
        self.go_on()
        time.sleep(PATIENCE)


def outcome_in(reply: Message) -> bytes:
    outcome = reply.content.config_records.get("work", ConfigRecord()).get("outcome")
    if not isinstance(outcome, bytes):
        raise CelmError("a node answered without an outcome")
    return outcome


@client.train()
def train(message: Message, context: Context) -> Message:
    """One job of one client; what goes wrong is reported as the worker processes report it."""
    work = message.content.config_records["work"]
    try:
        federation = federation_of(str(work["settings"]))
        memory = federation.workbench.objective.memory_type
        job = from_bytes(bytes(work["job"]), Job, {"memory": memory})  # type: ignore[arg-type]
        outcome = to_bytes("done", federation.workbench.work(job))
    except CelmError as error:
        outcome = to_bytes("refused", str(error))
    except Exception:
        outcome = to_bytes("failed", traceback.format_exc())
    return Message(RecordDict({"work": ConfigRecord({"outcome": outcome})}), reply_to=message)


@lru_cache(maxsize=1)
def federation_of(settings: str) -> Federation:
    """The data dealt and the model built, once in each process."""
    import tomllib

    experiment = Experiment.parse(tomllib.loads(settings))
    torch.set_num_threads(experiment.run.threads)
    return assemble(experiment)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Play the experiment that the run's configuration names, or go on with it."""
    wanted = {key: context.run_config.get(key) for key in ("experiment", "out")}
    for key, value in wanted.items():
        if not value:
            raise CelmError(f"the run's configuration has no '{key}'", f"flwr run -c '{key}=\"...\"'")
    out, experiment = Path(str(wanted["out"])), Experiment.read(Path(str(wanted["experiment"])))
    if (out / "settings.toml").exists():
        folder = Folder.open(out)
        folder.check_model(experiment.model.name or None)
    else:
        folder = Folder.create(out, experiment)
    carry_out(folder, hire=lambda federation, _: Nodes(grid, federation))
