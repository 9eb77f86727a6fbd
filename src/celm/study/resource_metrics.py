"""The costs of a run: bytes sent, memory of a probe, seconds at the server.

    upload      Σ over the round's clients of the size of the model that they send
    download    Σ over the round's clients of the size of the model that they receive

Both are means over all rounds, with the warm-up, of the sizes of the models. Other tensors that some methods exchange
(control variates, validation scores) are not included. While clients keep their own heads, a client does not receive a
head again after the first round that it takes part in. With `warmup_tolerance` this is counted up to the last possible
round of the warm-up, so the download may lack a few heads.

The memory of a probe is the peak size of its tensors in addition to the models: stacked parameters, inputs, gradients,
activations, optimiser. To measure it, the probe of the run's model, clients and classes is repeated for two steps. All
tensors that are created and freed are counted. Later steps do not need more. Memory that kernels allocate internally is
not included. The result depends neither on time nor on values, so it repeats exactly.
"""

from __future__ import annotations

import weakref
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from celm.core.model_stack import ModelStack
from celm.core.probe import probe
from celm.federation.model_spec import ModelSpec, build_from_spec
from celm.models.heads import head_keys
from celm.models.staged import exchanged_part
from celm.models.state_dict import get_state
from celm.records.run_files import RunFiles
from celm.runs.run import Run

_BYTES_PER_MEGABYTE = 1e6


def upload_megabytes(run: Run) -> float | None:
    """Return the megabytes that all clients send in a round."""
    sizes = _model_bytes(run)
    return (
        None
        if sizes is None
        else mean(len(record["clients"]) * sizes[0] for record in run.rounds) / _BYTES_PER_MEGABYTE
    )


def download_megabytes(run: Run) -> float | None:
    """Return the megabytes that all clients receive in a round."""
    sizes = _model_bytes(run)
    if sizes is None:
        return None
    model_size, head_size = sizes
    local_head_rounds = run.experiment.run.local_heads or 0
    seen_clients: set[str] = set()
    bytes_sent = []
    for record in run.rounds:
        num_without_head = (
            len(seen_clients.intersection(record["clients"])) if record["round"] <= local_head_rounds else 0
        )
        bytes_sent.append(len(record["clients"]) * model_size - num_without_head * head_size)
        seen_clients.update(set(record["clients"]) - set(record["excluded"]))
    return mean(bytes_sent) / _BYTES_PER_MEGABYTE


def probe_megabytes(run: Run) -> float | None:
    """Return the megabytes that a probe of all clients and the global model needs in addition to the models."""
    probed_counts = [len(record["evidence"]) for record in run.rounds if record["evidence"]]
    spec = _load_model_spec(run)
    if not probed_counts or spec is None:
        return None
    return measure_probe_peak(spec, 1 + max(probed_counts), run.experiment.probe.chunk) / _BYTES_PER_MEGABYTE


def server_seconds(run: Run) -> float | None:
    """Return the wall-clock seconds of a round at the server; None if the time of some round is missing."""
    times = RunFiles(run.folder).server_times()
    if len(times) < len(run.rounds):
        return None
    probed_rounds = [record["round"] for record in run.rounds if record["evidence"]]
    if len(probed_rounds) > 1:
        # The first probe also loads parts of torch. It counts as the mean of the others.
        times[probed_rounds[0]] = mean(times[number] for number in probed_rounds[1:])
    return mean(times.values())


def _load_model_spec(run: Run) -> ModelSpec | None:
    """Return the specification of the run's model; None if the folder does not have the model."""
    path = run.folder / "model.safetensors"
    return ModelSpec.from_file(path, run.experiment.model.name or None)[0] if path.exists() else None


def _model_bytes(run: Run) -> tuple[int, int] | None:
    """Return the bytes of the model that clients exchange, with its buffers, and the bytes of its head."""
    spec = _load_model_spec(run)
    if spec is None:
        return None
    built = build_from_spec(spec)
    state, head = get_state(exchanged_part(built.module)), head_keys(built.module, built.head)
    return sum(map(_tensor_bytes, state.values())), sum(_tensor_bytes(state[name]) for name in head)


def _tensor_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def measure_probe_peak(spec: ModelSpec, num_models: int, chunk: int | None) -> int:
    """Return the peak bytes of a probe of `num_models` models in addition to the models."""
    module = build_from_spec(spec).module
    stack = ModelStack(module, [get_state(module)] * num_models)
    classes = len(spec.classes)
    initial_inputs = torch.zeros(num_models, classes, *spec.input_shape)
    memory_mode = _PeakMemoryMode()
    with memory_mode:
        probe(stack, initial_inputs, classes, steps=2, chunk=chunk)
    return memory_mode.peak


class _PeakMemoryMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types here
    """Counter of the bytes of tensors that are created while it is active; `peak` is the maximum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self.seen_storages: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        input_storages = {
            id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        outputs = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if id(storage) not in input_storages and storage not in self.seen_storages:
                    self._add_storage(storage)
        return outputs

    def _add_storage(self, storage: Any) -> None:
        size = storage.nbytes()
        self.seen_storages.add(storage)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._subtract, size)

    def _subtract(self, size: int) -> None:
        self.current -= size
