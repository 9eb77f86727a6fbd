"""Probe models on a Ray cluster: divide them into shards, run each shard as a task, join the results.

Models do not interact, and the noise of every model is drawn before they are divided. So the node on which a model is
probed changes the result by rounding only. A task uses one CPU. Every node needs the same version of celm and the code
of the model; states and inputs are sent to it.
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
from celm.base.text import format_exception
from celm.core.model_stack import ModelStack
from celm.core.probe import ProbeResult, ProbeTransform, prepare_probe, probe
from celm.engines.ray_cluster import RayCluster, check_address, check_celm_version, import_ray
from celm.models.user_model import cwd_importable

_PROBE_ENGINE_OPTION = "--probe-engine ray"
MAX_SHARD_BYTES = 256 << 20
"""Maximum size of the states and inputs of a shard; a larger model is a shard of its own."""


@dataclass(frozen=True)
class Shard:
    """Some consecutive models of a stack and their initial inputs `[m, K, *shape]`."""

    stack: ModelStack
    initial_inputs: Sequence[Tensor]

    def to_cpu_copies(self) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Return states and inputs to send. Each is a copy, because a view would be sent with its whole storage."""
        states = [{name: _cpu_copy(tensor) for name, tensor in state.items()} for state in self.stack.states]
        return states, torch.stack([_cpu_copy(inputs) for inputs in self.initial_inputs])


class RayProber:
    """A probe function on a Ray cluster, with the signature of `celm.core.probe.probe`.

    It connects to the cluster when entered, or with the first probe.
    """

    def __init__(self, address: str | None = None) -> None:
        import_ray(_PROBE_ENGINE_OPTION)
        if address:
            check_address(address)
        self.address = address
        self.cluster: RayCluster | None = None
        # Ray reports dead workers on stdout, which is reserved for results.
        self.stdout_redirect = redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        self.connect()
        self.stdout_redirect.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout_redirect.__exit__(None, None, None)
        self.connect().close()
        self.cluster = None

    def connect(self) -> RayCluster:
        """Connect to the cluster, if not connected yet."""
        if self.cluster is None:
            self.cluster = RayCluster(_PROBE_ENGINE_OPTION, self.address)
        return self.cluster

    @property
    def parallelism(self) -> int:
        """Return the number of shards that run at a time."""
        return self.connect().cpus

    @torch.inference_mode(False)  # as in the local probe: results can be differentiated
    def __call__(
        self,
        models: Sequence[nn.Module] | ModelStack,
        inputs: Tensor | Sequence[int],
        classes: int | Sequence[int],
        *,
        seed: int = 0,
        transform: ProbeTransform | None = None,
        **settings: Any,
    ) -> ProbeResult:
        stacks, targets, initial_inputs = prepare_probe(models, inputs, classes, seed)
        cluster = self.connect()
        task = cluster.task(remote_probe, scheduling_strategy="SPREAD")
        options = {"classes": targets, "seed": seed, "transform": transform, **settings}
        modules = {id(stack.module): cluster.ray.put(serialise_module(stack.module)) for stack in stacks}

        def send(shard: Shard) -> Any:
            return task.remote(
                modules[id(shard.stack.module)], *shard.to_cpu_copies(), options, version("celm")
            )

        jobs = [partial(send, shard) for shard in make_shards(stacks, initial_inputs, cluster.cpus)]
        return concat_results(cluster.gather(jobs), initial_inputs[0].device, transform)


def make_shards(
    stacks: Sequence[ModelStack], initial_inputs: Sequence[Tensor], parallelism: int
) -> Iterator[Shard]:
    """Divide the models into shards of consecutive models: at least `parallelism` if possible, each of bounded size."""
    row = 0
    for stack in stacks:
        size = initial_inputs[0].nbytes + sum(tensor.nbytes for tensor in stack.states[0].values())
        models_per_shard = max(1, min(math.ceil(len(initial_inputs) / parallelism), MAX_SHARD_BYTES // size))
        for offset in range(0, len(stack), models_per_shard):
            shard_stack = stack[offset : offset + models_per_shard]
            yield Shard(shard_stack, initial_inputs[row : row + len(shard_stack)])
            row += len(shard_stack)


def concat_results(
    parts: Sequence[ProbeResult], device: torch.device, transform: ProbeTransform | None
) -> ProbeResult:
    """Join the shards' results in their order; inputs go to the device of the starting inputs."""
    logits = torch.cat([part.logits for part in parts])
    inputs = torch.cat([part.inputs for part in parts]).to(device)
    if transform is None:
        return ProbeResult(logits, inputs)
    measurements = transform.concat([part.measurements for part in parts], range(logits.shape[1]))
    return ProbeResult(logits, inputs, measurements)


def _cpu_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def serialise_module(module: nn.Module) -> bytes:
    """Pickle a module and its code as Ray does, on the CPU."""
    try:
        content: bytes = import_ray(_PROBE_ENGINE_OPTION).cloudpickle.dumps(copy.deepcopy(module).cpu())
    except Exception as error:  # a user's module may hold any object
        raise CelmError(f"the model cannot be sent to a Ray cluster: {format_exception(error)}") from error
    return content


def remote_probe(
    module: bytes,
    states: Sequence[Mapping[str, Tensor]],
    initial_inputs: Tensor,
    settings: Mapping[str, Any],
    expected_version: str,
) -> ProbeResult:
    """Probe one shard, on the cluster.

    The architecture is a pickle from the driver. Ray runs the driver's tasks from pickles anyway, so this trusts no one
    else. Client updates are sent as tensors.
    """
    check_celm_version(expected_version)
    torch.set_num_threads(1)
    try:
        with cwd_importable():
            architecture = import_ray(_PROBE_ENGINE_OPTION).cloudpickle.loads(module)
    except Exception as error:
        raise CelmError(f"a node of the cluster cannot load the model: {format_exception(error)}") from error
    return probe(ModelStack(architecture, states), initial_inputs, **settings)
