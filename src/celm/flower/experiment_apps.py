"""An experiment as Flower apps: nodes run the clients' tasks, the server runs the rounds.

    [tool.flwr.app.components]
    serverapp = "celm.flower.experiment_apps:server"
    clientapp = "celm.flower.experiment_apps:client"

    [tool.flwr.app.config]
    experiment = "/absolute/path/to/experiment.toml"
    out = "/absolute/path/to/run"

A task is self-contained, so any node can run it, and the numbers are those of the local engine. Every node needs the
whole dataset: this is for experiments. If clients hold their own data, use `celm.flower.CelmStrategy`.
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
from celm.base.text import quote as quote_name
from celm.engines.in_process import InProcessEngine
from celm.engines.process_engine import decode_message, encode_message, raise_if_error
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.client_trainer import ClientResult, ClientTask, EvalSet
from celm.models.state_dict import StateDict
from celm.runs.run_folder import RunFolder
from celm.runs.runner import continue_run

_REPLY_POLL_SECONDS = 0.1
"""Seconds between two polls for replies."""

client = ClientApp()
server = ServerApp()


class FlowerEngine:
    """Run tasks on Flower's nodes, one message per task; evaluate on the server."""

    def __init__(self, grid: Grid, federation: Federation, stopped: threading.Event | None = None) -> None:
        self.grid = grid
        self.federation = federation
        self.settings = federation.experiment.to_toml()
        self.local_engine = InProcessEngine(federation.trainer)
        self.stopped = stopped or threading.Event()

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        self._check_stopped()
        nodes = itertools.cycle(self._wait_for_node_ids())
        messages = [self._task_message(task, next(nodes)) for task in tasks]
        replies = self._send_and_wait(messages)
        client_state_type = self.federation.trainer.objective.client_state_type
        return [
            decode_message(raise_if_error(reply), ClientResult, {"client_state": client_state_type})
            for reply in replies
        ]

    def evaluate(self, models: Sequence[StateDict], on: EvalSet = "test") -> list[Tensor]:
        return self.local_engine.evaluate(models, on)

    def close(self) -> None:
        pass

    def _wait_for_node_ids(self) -> list[int]:
        while not (node_ids := sorted(self.grid.get_node_ids())):
            self.wait()
        return node_ids

    def _task_message(self, task: ClientTask, node: int) -> Message:
        content = ConfigRecord({"settings": self.settings, "task": encode_message("train", task)})
        return Message(RecordDict({"train": content}), node, MessageType.TRAIN)

    def _send_and_wait(self, messages: Sequence[Message]) -> list[bytes]:
        """Return the reply to each message, in the order of the messages."""
        pending = set(self.grid.push_messages(messages))
        replies: dict[str, bytes] = {}
        while pending:
            for reply in self.grid.pull_messages(pending):
                if reply.has_error():
                    raise CelmError(f"a node failed: {quote_name(reply.error.reason, 300)}")
                replies[reply.metadata.reply_to_message_id] = _read_result(reply)
            pending -= set(replies)
            if pending:
                self.wait()
        return [replies[message.metadata.message_id] for message in messages]

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise CelmError("stopped")

    def wait(self) -> None:
        self._check_stopped()
        time.sleep(_REPLY_POLL_SECONDS)


def _read_result(reply: Message) -> bytes:
    result = reply.content.config_records.get("train", ConfigRecord()).get("result")
    if not isinstance(result, bytes):
        raise CelmError("a node replied without a result")
    return result


@client.train()
def run_client_task(message: Message, context: Context) -> Message:
    """Run one client's task; report errors as worker processes do."""
    record = message.content.config_records["train"]
    try:
        federation = _cached_federation(str(record["settings"]))
        client_state_type = federation.trainer.objective.client_state_type
        task = decode_message(bytes(record["task"]), ClientTask, {"client_state": client_state_type})  # type: ignore[arg-type]
        result = encode_message("done", federation.trainer.train(task))
    except CelmError as error:
        result = encode_message("refused", str(error))
    except Exception:
        result = encode_message("failed", traceback.format_exc())
    return Message(RecordDict({"train": ConfigRecord({"result": result})}), reply_to=message)


@lru_cache(maxsize=1)
def _cached_federation(settings: str) -> Federation:
    """Build the federation once in each process."""
    import tomllib

    experiment = Experiment.parse(tomllib.loads(settings))
    torch.set_num_threads(experiment.run.threads)
    return build_federation(resolve_defaults(experiment))


@server.main()
def run_server_app(grid: Grid, context: Context) -> None:
    """Run or resume the experiment that the run's configuration names."""
    run_config = {key: context.run_config.get(key) for key in ("experiment", "out")}
    for key, value in run_config.items():
        if not value:
            raise CelmError(f"the run's configuration has no '{key}'", f"flwr run -c '{key}=\"...\"'")
    out, experiment = Path(str(run_config["out"])), Experiment.read(Path(str(run_config["experiment"])))
    if (out / "settings.toml").exists():
        folder = RunFolder.open(out)
        folder.check_model(experiment.model.name or None)
    else:
        folder = RunFolder.create(out, experiment)
    continue_run(folder, engine_factory=lambda federation, _: FlowerEngine(grid, federation))
