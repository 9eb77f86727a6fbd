"""What a run costs besides accuracy: bytes on the wire, memory of a probe, seconds at the server.

    upload      Σ over the round's clients of the model they send
    download    the same of the model they are sent; without the head while each client keeps its own

Both are means over all rounds, warm-up included, from the sizes of the models alone: what some methods exchange
besides (control variates, validation scores) is not in them. Kept heads need not travel down again: from the second
round that a client takes part in until heads are shared; with `settle` that is counted to the last round it allows,
at most some heads too few.

The memory of a probe is the most that its tensors take at any moment on top of the models themselves: stacked
parameters, inputs, gradients, activations, optimiser. It is measured by counting every tensor made and dropped
while the probe of the run's model, clients and classes is repeated for two steps; later steps need no more. What
kernels allocate inside of themselves is not seen. It does not depend on time or values, so it repeats exactly.
"""

from __future__ import annotations

import weakref
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from celm.federation.architecture import Recipe, build_architecture
from celm.federation.folder import Folder
from celm.federation.run import Run
from celm.method.probe import probe
from celm.method.stacking import Stack
from celm.models.anatomy import head_keys
from celm.models.state import state_of

MEGA = 1e6


def upload(run: Run) -> float | None:
    """Megabytes that all clients send in a round."""
    sizes = model_bytes(run)
    return None if sizes is None else mean(len(record["clients"]) * sizes[0] for record in run.rounds) / MEGA


def download(run: Run) -> float | None:
    """Megabytes that all clients are sent in a round."""
    sizes = model_bytes(run)
    if sizes is None:
        return None
    whole, head = sizes
    kept = run.experiment.run.local_heads or 0
    met: set[str] = set()
    sent = []
    for record in run.rounds:
        spared = len(met.intersection(record["clients"])) if record["round"] <= kept else 0
        sent.append(len(record["clients"]) * whole - spared * head)
        met.update(set(record["clients"]) - set(record["excluded"]))
    return mean(sent) / MEGA


def probe_memory(run: Run) -> float | None:
    """Megabytes that a probe of all clients and the global model needs on top of them."""
    probed = [len(record["evidence"]) for record in run.rounds if record["evidence"]]
    recipe = recipe_of(run)
    if not probed or recipe is None:
        return None
    return peak_of_probe(recipe, 1 + max(probed), run.experiment.probe.chunk) / MEGA


def server_seconds(run: Run) -> float | None:
    """Seconds a round at the server, by the clock; None where not every round's time was taken."""
    times = Folder(run.folder).server_times()
    if len(times) < len(run.rounds):
        return None
    probed = [record["round"] for record in run.rounds if record["evidence"]]
    if len(probed) > 1:
        # the first probe also waits for parts of torch to load: it counts as one of the others
        times[probed[0]] = mean(times[number] for number in probed[1:])
    return mean(times.values())


def recipe_of(run: Run) -> Recipe | None:
    """How the run's model is built; None where the folder does not hold it."""
    path = run.folder / "model.safetensors"
    return Recipe.of_file(path, run.experiment.model.name or None)[0] if path.exists() else None


def model_bytes(run: Run) -> tuple[int, int] | None:
    """Bytes of the whole model, buffers included, and of its head."""
    recipe = recipe_of(run)
    if recipe is None:
        return None
    built = build_architecture(recipe)
    state, head = state_of(built.module), head_keys(built.module, built.head)
    return sum(map(bytes_of, state.values())), sum(bytes_of(state[name]) for name in head)


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def peak_of_probe(recipe: Recipe, models: int, chunk: int | None) -> int:
    module = build_architecture(recipe).module
    stack = Stack(module, [state_of(module)] * models)
    classes = len(recipe.classes)
    start = torch.zeros(models, classes, *recipe.input_shape)
    peak = Peak()
    with peak:
        probe(stack, start, classes, steps=2, chunk=chunk)
    return peak.most


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch says nothing of its types
    """Bytes of the tensors made meanwhile and still there; `most` is the most there ever was."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if id(storage) not in given and storage not in self.known:
                    self.count(storage)
        return made

    def count(self, storage: Any) -> None:
        size = storage.nbytes()
        self.known.add(storage)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.dropped, size)

    def dropped(self, size: int) -> None:
        self.now -= size
