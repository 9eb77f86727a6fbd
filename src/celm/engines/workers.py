"""Clients on worker processes of this machine.

The data lies in shared memory; models travel as safetensors bytes. Every job is a function of what is in it, so
the numbers are the same for any number of workers. Workers end with their parent, however that ends.
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
from celm.base.memory import use_large_pages
from celm.engines.in_process import sum_of
from celm.federation.architecture import Recipe, build_architecture
from celm.federation.jobs import Job, LocalData, Outcome, Set, Workbench
from celm.federation.trees import pack, unpack
from celm.models.state import StateDict


@dataclass(frozen=True)
class Worker:
    process: mp.process.BaseProcess
    pipe: Connection


TAKEN_ALONG = ("train", "seed", "classes", "inputs", "test_inputs", "test_labels", "fill", "device")
"""Fields of a workbench that a worker gets as they are."""


@dataclass(frozen=True)
class Kit:
    """What a worker builds its workbench from: the recipe of the model and not the model, which may not travel."""

    recipe: str
    holdings: bytes
    """As bytes: a tensor that is sent takes a file descriptor, and clients may be many."""
    rest: Mapping[str, Any]

    @classmethod
    def of(cls, bench: Workbench) -> Kit:
        if bench.recipe is None:
            raise ValueError("a workbench without a recipe cannot be set up elsewhere")
        rest = {name: getattr(bench, name) for name in TAKEN_ALONG}
        return cls(dump_json(bench.recipe.to_json()), to_bytes("holdings", bench.holdings), rest)

    def workbench(self) -> Workbench:
        recipe = Recipe.from_json(json.loads(self.recipe))
        built = build_architecture(recipe)
        return Workbench(
            recipe=recipe,
            module=built.module,
            head=built.head,
            objective=built.objective,
            holdings=from_bytes(self.holdings, dict[str, LocalData]),
            **self.rest,
        )


class Workers:
    def __init__(self, workbench: Workbench, count: int, threads: int) -> None:
        self.workbench = workbench
        # "spawn" everywhere: a forked torch may hang in its thread pool.
        context = shared.get_context("spawn")
        for tensor in (workbench.inputs, workbench.test_inputs, workbench.test_labels):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        kit = Kit.of(workbench)
        use_large_pages()
        self.crew: list[Worker] = []
        try:
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs, kit, threads, os.getpid()), daemon=True)
                # Ctrl-C is not for workers, not even while they start.
                with interrupts_held_back():
                    process.start()
                theirs.close()
                self.crew.append(Worker(process, ours))
        except BaseException:
            self.close()
            raise

    def work(self, jobs: Sequence[Job]) -> list[Outcome]:
        holdings = self.workbench.holdings
        memory = self.workbench.objective.memory_type
        asked = [partial(to_bytes, "work", job) for job in jobs]
        sizes = [len(holdings[job.client].rows) for job in jobs]
        return self.share_out(asked, sizes, partial(from_bytes, kind=Outcome, hints={"memory": memory}))

    def evaluate(self, models: Sequence[StateDict], on: Set = "test") -> list[Tensor]:
        batches = self.workbench.evaluation_batches(on)
        # A part of the test set for each worker and model; the counts add up whatever the parts are.
        parts = [range(i, batches, len(self.crew)) for i in range(min(len(self.crew), batches))]
        asked = [partial(to_bytes, "evaluate", (model, list(part), on)) for model in models for part in parts]
        counts = self.share_out(asked, [1] * len(asked), from_bytes)
        return [sum_of(counts[i : i + len(parts)]) for i in range(0, len(counts), len(parts))]

    def share_out(
        self, requests: Sequence[Callable[[], bytes]], sizes: Sequence[int], read: Callable[[bytes], Any]
    ) -> list[Any]:
        """Give every request to the next free worker, the largest first; what is read from the replies, in the
        order of requests. Messages are made and read while the workers are at work."""
        waiting = deque(sorted(range(len(requests)), key=lambda i: (-sizes[i], i)))
        made: dict[int, bytes] = {}
        busy: dict[Connection, int] = {}
        replies: list[tuple[int, bytes]] = []
        found: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        free = [worker.pipe for worker in self.crew]
        while len(found) + len(failed) < len(requests):
            while free and waiting:
                pipe, index = free.pop(0), waiting.popleft()
                self.guarded(pipe.send_bytes, made.pop(index) if index in made else requests[index]())
                busy[pipe] = index
            for index in islice(waiting, len(self.crew)):
                if index not in made:
                    made[index] = requests[index]()
            for index, reply in replies:
                try:
                    found[index] = read(unwrapped(reply))
                except Exception as error:  # raised when no worker is at work any more
                    failed[index] = error
            replies = []
            for ready in wait(list(busy)) if busy else ():
                assert isinstance(ready, Connection)
                replies.append((busy.pop(ready), self.guarded(ready.recv_bytes)))
                free.append(ready)
        if failed:
            raise failed[min(failed)]
        return [found[i] for i in range(len(requests))]

    def guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            # The exit code comes a moment after the closed pipe.
            gone = wait([worker.process.sentinel for worker in self.crew], timeout=5)
            ended = [exit_code(worker.process) for worker in self.crew if worker.process.sentinel in gone]
            memory = -signal.SIGKILL in ended
            hint = "out of memory? try fewer workers: --workers 1" if memory else "try without: --workers 0"
            raise CelmError(f"a worker process ended unexpectedly (exit codes {ended})", hint) from error

    def close(self) -> None:
        for worker in self.crew:
            worker.pipe.close()
        for worker in self.crew:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.crew = []


def exit_code(process: mp.process.BaseProcess) -> int | None:
    process.join()
    return process.exitcode


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """A process started meanwhile never gets them; this one gets them afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- messages: JSON and tensors in one run of bytes ---------------------------------------------------------


def to_bytes(verb: str, value: Any) -> bytes:
    tensors: dict[str, Tensor] = {}
    packed = pack(value, "x", tensors)
    apart = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(apart, metadata={"celm": dump_json({"verb": verb, "value": packed})})


def header(message: bytes) -> dict[str, Any]:
    length = int.from_bytes(message[:8], "little")
    about: dict[str, Any] = json.loads(json.loads(message[8 : 8 + length])["__metadata__"]["celm"])
    return about


def from_bytes(message: bytes, kind: Any = None, hints: dict[str, Any] | None = None) -> Any:
    return unpack(header(message)["value"], load(message), kind, hints or {})


def unwrapped(reply: bytes) -> bytes:
    """The reply, or the worker's error raised here."""
    about = header(reply)
    if about["verb"] == "refused":
        raise CelmError(about["value"]["value"])
    if about["verb"] == "failed":
        raise RuntimeError(f"a worker failed:\n{about['value']['value']}")
    return reply


# --- in the worker ------------------------------------------------------------------------------------------


def serve(pipe: Connection, kit: Kit, threads: int, parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(threads)
    workbench = kit.workbench()
    memory = workbench.objective.memory_type
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            if header(message)["verb"] == "work":
                reply = to_bytes("done", workbench.work(from_bytes(message, Job, {"memory": memory})))
            else:
                model, batches, on = from_bytes(message)
                reply = to_bytes("done", sum_of([workbench.evaluate(model, batch, on) for batch in batches]))
        except CelmError as error:
            reply = to_bytes("refused", str(error))
        except Exception:
            reply = to_bytes("failed", traceback.format_exc())
        try:
            pipe.send_bytes(reply)
        except OSError:
            return


def die_with_parent(parent: int) -> None:
    """Linux ends this process with its parent at once; elsewhere the closed pipe does, after the current job."""
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before the request
            os._exit(1)
