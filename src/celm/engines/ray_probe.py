"""Probes on a Ray cluster: the models are cut into shards, each shard is a task, and the parts are put together.

Models do not interact and every model's noise is drawn before the cut, so where a model is probed changes the result
by rounding only. A task computes on one CPU. Every node needs this version of celm and the code of the model; its
states and the inputs travel.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Self

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.engines.ray_cluster import Cluster, check_address, check_release, find_ray
from celm.method.calibration import together
from celm.method.probe import Probe, begin, probe
from celm.method.stacking import Stack
from celm.models.factory import one_line, working_folder_importable

OPTION = "--probe-engine ray"
MOST_BYTES = 256 << 20
"""Of states and inputs in one shard; a larger model goes alone."""


@dataclass(frozen=True)
class Shard:
    """Some neighbours of a stack, and where they begin: inputs `[m, K, *shape]`."""

    stack: Stack
    start: Sequence[Tensor]

    def packed(self) -> tuple[list[dict[str, Tensor]], Tensor]:
        """States and inputs as they travel: each in memory of its own, since a view would take along the whole."""
        states = [{name: own(tensor) for name, tensor in state.items()} for state in self.stack.states]
        return states, torch.stack([own(each) for each in self.start])


class RayProber:
    """Called as `celm.method.probe.probe` is. Joins the cluster when entered, or else with the first probe."""

    def __init__(self, address: str | None = None) -> None:
        find_ray(OPTION)
        if address:
            check_address(address)
        self.address = address
        self.cluster: Cluster | None = None
        # Ray tells of workers that died on stdout, which is for results.
        self.stdout = redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        self.join()
        self.stdout.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.__exit__(None, None, None)
        self.join().close()
        self.cluster = None

    def join(self) -> Cluster:
        if self.cluster is None:
            self.cluster = Cluster(OPTION, self.address)
        return self.cluster

    @property
    def width(self) -> int:
        """Shards at a time."""
        return self.join().cpus

    @torch.inference_mode(False)  # as for the local probe: what comes back can be differentiated
    def __call__(
        self,
        models: Sequence[nn.Module] | Stack,
        inputs: Tensor | Sequence[int],
        classes: int | Sequence[int],
        *,
        seed: int = 0,
        **settings: Any,
    ) -> Probe:
        stacks, targets, start = begin(models, inputs, classes, seed)
        cluster = self.join()
        task = cluster.task(probe_away, scheduling_strategy="SPREAD")
        told = {"classes": targets, "seed": seed, **settings}
        modules = {id(stack.module): cluster.ray.put(packed(stack.module)) for stack in stacks}

        def send(shard: Shard) -> Any:
            return task.remote(modules[id(shard.stack.module)], *shard.packed(), told, version("celm"))

        jobs = [partial(send, shard) for shard in cut(stacks, start, cluster.cpus)]
        return joined(cluster.gather(jobs), start[0].device)


def cut(stacks: Sequence[Stack], start: Sequence[Tensor], width: int) -> Iterator[Shard]:
    """Shards of neighbours, as many as the width or more, none of them larger than it must be."""
    first = 0
    for stack in stacks:
        size = start[0].nbytes + sum(tensor.nbytes for tensor in stack.states[0].values())
        several = max(1, min(math.ceil(len(start) / width), MOST_BYTES // size))
        for offset in range(0, len(stack), several):
            part = stack[offset : offset + several]
            yield Shard(part, start[first : first + len(part)])
            first += len(part)


def joined(parts: Sequence[Probe], device: torch.device) -> Probe:
    """The parts as one, in their order; where they end is kept where they began."""
    logits = torch.cat([part.logits for part in parts])
    inputs = torch.cat([part.inputs for part in parts]).to(device)
    calibrations = [part.calibration for part in parts if part.calibration is not None]
    return Probe(logits, inputs, together(calibrations, range(logits.shape[1])) if calibrations else None)


def own(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def packed(module: nn.Module) -> bytes:
    """A module with all that it is made of, as Ray itself would send it, but from the CPU."""
    try:
        content: bytes = find_ray(OPTION).cloudpickle.dumps(copy.deepcopy(module).cpu())
    except Exception as error:  # a user's module may hold anything
        raise CelmError(f"the model cannot be sent to a Ray cluster: {one_line(error)}") from error
    return content


def probe_away(
    module: bytes,
    states: Sequence[Mapping[str, Tensor]],
    start: Tensor,
    settings: Mapping[str, Any],
    release: str,
) -> Probe:
    """On the cluster: one shard.

    The architecture comes as a pickle from the driver, whose tasks Ray runs in the same way: nobody new is trusted.
    What clients upload travels as tensors.
    """
    check_release(release)
    torch.set_num_threads(1)
    try:
        with working_folder_importable():
            architecture = find_ray(OPTION).cloudpickle.loads(module)
    except Exception as error:
        raise CelmError(f"a node of the cluster cannot load the model: {one_line(error)}") from error
    return probe(Stack(architecture, states), start, **settings)
