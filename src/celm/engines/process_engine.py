"""The engine that trains clients in worker processes on this machine.

The data are in shared memory; models are sent as safetensors bytes. The result of a task is a function of the task
alone, so the numbers are the same for any number of workers. Workers end with their parent, even if it is killed.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing as mp
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing as shared
from safetensors.torch import load, save
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.huge_pages import enable_huge_pages
from celm.base.processes import without_main_script
from celm.base.state_serialisation import flatten_state, restore_state
from celm.engines.in_process import sum_counts
from celm.federation.client_trainer import ClientData, ClientResult, ClientTask, ClientTrainer, EvalSet
from celm.federation.model_spec import ModelSpec, build_from_spec
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class _Worker:
    """A worker process and the parent's end of its pipe."""

    process: mp.process.BaseProcess
    pipe: Connection


_SHARED_FIELDS = (
    "train_config",
    "seed",
    "classes",
    "inputs",
    "test_inputs",
    "test_labels",
    "pad_value",
    "device",
    "inputs_encoded",
)
"""Fields of a client trainer that are sent to a worker unchanged."""


@dataclass(frozen=True)
class _WorkerConfig:
    """The data from which a worker builds its trainer.

    It has the specification of the model, not the model: a user's module may not be picklable.
    """

    model_spec: str
    client_data: bytes
    """Encoded as bytes: each tensor sent through a pipe takes a file descriptor, and there may be many clients."""
    shared_fields: Mapping[str, Any]

    @classmethod
    def from_trainer(cls, trainer: ClientTrainer) -> _WorkerConfig:
        """Collect the parts of a trainer that a worker needs."""
        if trainer.model_spec is None:
            raise ValueError("a trainer without a model specification cannot be built in another process")
        shared_fields = {name: getattr(trainer, name) for name in _SHARED_FIELDS}
        return cls(
            dump_json(trainer.model_spec.to_json()),
            encode_message("client_data", trainer.client_data),
            shared_fields,
        )

    def build_trainer(self) -> ClientTrainer:
        """Build the same trainer in the worker."""
        model_spec = ModelSpec.from_json(json.loads(self.model_spec))
        built_model = build_from_spec(model_spec)
        return ClientTrainer(
            model_spec=model_spec,
            module=built_model.module,
            head=built_model.head,
            objective=built_model.objective,
            client_data=decode_message(self.client_data, dict[str, ClientData]),
            **self.shared_fields,
        )


class ProcessEngine:
    """An engine that trains and evaluates in `count` worker processes with `threads` threads each."""

    def __init__(self, trainer: ClientTrainer, count: int, threads: int) -> None:
        self.trainer = trainer
        # "spawn" on every platform: a forked torch may hang in its thread pool.
        context = shared.get_context("spawn")
        for tensor in (trainer.inputs, trainer.test_inputs, trainer.test_labels):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        config = _WorkerConfig.from_trainer(trainer)
        self._needs_script = json.loads(config.model_spec)["model"]["name"].startswith("__main__:")
        enable_huge_pages()
        self.workers: list[_Worker] = []
        try:
            for _ in range(count):
                parent_pipe, worker_pipe = context.Pipe()
                process = context.Process(
                    target=_worker_main, args=(worker_pipe, config, threads, os.getpid()), daemon=True
                )
                # Workers must not receive Ctrl-C, not even while they start.
                with _block_sigint(), without_main_script(is_needed=self._needs_script):
                    process.start()
                worker_pipe.close()
                self.workers.append(_Worker(process, parent_pipe))
        except BaseException:
            self.close()
            raise

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        """Train clients; results come in the order of the tasks."""
        client_data = self.trainer.client_data
        client_state_type = self.trainer.objective.client_state_type
        requests = [partial(encode_message, "train", task) for task in tasks]
        sizes = [len(client_data[task.client].rows) for task in tasks]
        return self._dispatch(
            requests,
            sizes,
            partial(decode_message, type_hint=ClientResult, field_types={"client_state": client_state_type}),
        )

    def evaluate(self, models: Sequence[StateDict], on: EvalSet = "test") -> list[Tensor]:
        """Return the confusion counts `[K, K]` of each model."""
        batches = self.trainer.num_evaluation_batches(on)
        # Each request is one model and some batches of the set. Counts add up to the same sum for any division.
        parts = [range(i, batches, len(self.workers)) for i in range(min(len(self.workers), batches))]
        requests = [
            partial(encode_message, "evaluate", (model, list(part), on)) for model in models for part in parts
        ]
        counts = self._dispatch(requests, [1] * len(requests), decode_message)
        return [sum_counts(counts[i : i + len(parts)]) for i in range(0, len(counts), len(parts))]

    def _dispatch(
        self, requests: Sequence[Callable[[], bytes]], sizes: Sequence[int], decode: Callable[[bytes], Any]
    ) -> list[Any]:
        """Send every request to the next free worker, the largest first; return results in the order of requests.

        Messages are encoded and decoded while workers are busy.
        """
        queued = deque(sorted(range(len(requests)), key=lambda i: (-sizes[i], i)))
        encoded: dict[int, bytes] = {}
        busy: dict[Connection, int] = {}
        replies: list[tuple[int, bytes]] = []
        results: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        free = [worker.pipe for worker in self.workers]
        while len(results) + len(failed) < len(requests):
            while free and queued:
                pipe, index = free.pop(0), queued.popleft()
                self._call_worker(
                    pipe.send_bytes, encoded.pop(index) if index in encoded else requests[index]()
                )
                busy[pipe] = index
            for index in islice(queued, len(self.workers)):
                if index not in encoded:
                    encoded[index] = requests[index]()
            for index, reply in replies:
                try:
                    results[index] = decode(raise_if_error(reply))
                except Exception as error:  # raised below, when no worker is busy
                    failed[index] = error
            replies = []
            for ready in wait(list(busy)) if busy else ():
                assert isinstance(ready, Connection)
                replies.append((busy.pop(ready), self._call_worker(ready.recv_bytes)))
                free.append(ready)
        if failed:
            raise failed[min(failed)]
        return [results[i] for i in range(len(requests))]

    def _call_worker(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of a worker's pipe; if the worker has ended, raise an error with its exit code."""
        try:
            return call(*arguments)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            # A process may end slightly after its pipe is closed.
            ended_sentinels = wait([worker.process.sentinel for worker in self.workers], timeout=5)
            exit_codes = [
                _exit_code(worker.process)
                for worker in self.workers
                if worker.process.sentinel in ended_sentinels
            ]
            was_killed = -signal.SIGKILL in exit_codes
            hint = "out of memory? try --workers 1" if was_killed else "try --workers 0"
            if self._needs_script and not was_killed:
                hint = (
                    "workers import the script of the model: put its calls below if __name__ == '__main__':"
                )
            raise CelmError(f"a worker process ended unexpectedly (exit codes {exit_codes})", hint) from error

    def close(self) -> None:
        """End all workers; kill those that do not end in time."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers = []


def _exit_code(process: mp.process.BaseProcess) -> int | None:
    process.join()
    return process.exitcode


@contextmanager
def _block_sigint() -> Iterator[None]:
    """Block SIGINT. A process started meanwhile never receives it; this process receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


# --- messages: JSON and tensors as safetensors bytes --------------------------------------------------------


def encode_message(kind: str, value: Any) -> bytes:
    """Encode a value of dataclasses, containers and tensors."""
    tensors: dict[str, Tensor] = {}
    flat = flatten_state(value, "x", tensors)
    contiguous_tensors = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
    }
    return save(contiguous_tensors, metadata={"celm": dump_json({"kind": kind, "value": flat})})


def _message_header(message: bytes) -> dict[str, Any]:
    length = int.from_bytes(message[:8], "little")
    metadata: dict[str, Any] = json.loads(json.loads(message[8 : 8 + length])["__metadata__"]["celm"])
    return metadata


def decode_message(message: bytes, type_hint: Any = None, field_types: dict[str, Any] | None = None) -> Any:
    """Decode a value; `type_hint` and `field_types` name the dataclasses in it."""
    return restore_state(_message_header(message)["value"], load(message), type_hint, field_types or {})


def raise_if_error(reply: bytes) -> bytes:
    """Return the reply, or raise the error that the worker reports."""
    metadata = _message_header(reply)
    if metadata["kind"] == "refused":
        raise CelmError(metadata["value"]["value"])
    if metadata["kind"] == "failed":
        raise RuntimeError(f"a worker failed:\n{metadata['value']['value']}")
    return reply


# --- in the worker ------------------------------------------------------------------------------------------


def _worker_main(pipe: Connection, config: _WorkerConfig, threads: int, parent: int) -> None:
    """Handle requests until the pipe is closed."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    torch.set_num_threads(threads)
    trainer = config.build_trainer()
    client_state_type = trainer.objective.client_state_type
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            if _message_header(message)["kind"] == "train":
                reply = encode_message(
                    "done",
                    trainer.train(decode_message(message, ClientTask, {"client_state": client_state_type})),
                )
            else:
                model, batches, on = decode_message(message)
                reply = encode_message(
                    "done", sum_counts([trainer.evaluate(model, batch, on) for batch in batches])
                )
        except CelmError as error:
            reply = encode_message("refused", str(error))
        except Exception:
            reply = encode_message("failed", traceback.format_exc())
        try:
            pipe.send_bytes(reply)
        except OSError:
            return


def die_with_parent(parent: int) -> None:
    """Make Linux kill this process when its parent ends.

    On other systems, the closed pipe ends it after the current task.
    """
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before this request
            os._exit(1)
