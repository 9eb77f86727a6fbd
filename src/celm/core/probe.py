"""Logit maximization, Eq. 4-7 and Algorithm 1 of the paper: the largest logit of each class that a model reaches.

    x*_c = argmax_x  s_c(x; w) - λ ||x||²        Adam, L steps of size η from Gaussian noise or a given start
    u_c  = s_c(x*_c; w)                           the logit after the last step

s_c is the pre-softmax logit of class c, ||x||² the sum of squares over all entries of the input. All classes and all
models are optimised in one batch. Inputs do not interact, so the size of the batch (`chunk`) changes rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam

from celm.base.processor import check_bfloat16
from celm.base.randomness import make_generator
from celm.base.text import format_exception
from celm.core.arguments import (
    ArgumentError,
    as_class_indices,
    as_shape,
    as_tensor,
    check_modules,
    check_output,
    explain_embedding,
)
from celm.core.batched_forward import make_forward
from celm.core.model_stack import BatchedForward, ModelStack, ReducedPrecisionForward, group_by_architecture
from celm.core.task_check import check_logits, check_num_classes, require_logits

_CACHE_BYTES = 5 << 20
"""Bytes of models in one batch on a CPU; the fastest value measured with 2 MiB of L2 and 32 MiB of L3 cache."""


@dataclass(frozen=True)
class ProbeResult:
    """The raised logits `[M, K]` and the inputs that raise them `[M, K, *shape]`."""

    logits: Tensor
    inputs: Tensor
    measurements: Any = None
    """Measurements of the probe's transform on the M models; a slice selects models."""


class ProbeTransform(Protocol):
    """A function of a model's logits that is raised in place of the raw logits."""

    def apply(
        self, forward: BatchedForward, models: int, shape: tuple[int, ...], device: torch.device
    ) -> tuple[BatchedForward, Any]:
        """Return the transformed forward of a batch of models, and measurements of these models."""

    def concat(self, measurements: Sequence[Any], classes: Sequence[int]) -> Any:
        """Join the measurements of several batches, on the CPU, for these classes."""


class LazyInputs(Sequence[Tensor]):
    """Starting inputs `[K, *shape]` of each model, made on access, so that only a few are in memory."""

    def __init__(self, makers: Sequence[Callable[[], Tensor]]) -> None:
        self._makers = makers

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> LazyInputs: ...
    def __getitem__(self, index: int | slice) -> Tensor | LazyInputs:
        return LazyInputs(self._makers[index]) if isinstance(index, slice) else self._makers[index]()


ProbeFunction = Callable[..., ProbeResult]
"""`probe`, or a function with the same arguments and the same result up to rounding."""


@torch.inference_mode(False)  # a caller may be in inference mode, in which nothing can be differentiated
def probe(
    models: Sequence[nn.Module] | ModelStack,
    inputs: Tensor | NDArray[Any] | Sequence[Tensor] | Sequence[int] | int,
    classes: int | Sequence[int],
    *,
    steps: int = 200,
    lr: float = 0.01,
    l2: float = 1e-3,
    chunk: int | None = None,
    seed: int = 0,
    transform: ProbeTransform | None = None,
    precision: torch.dtype = torch.float32,
    keep_inputs: bool = True,
) -> ProbeResult:
    """Maximise each class logit of each model.

    Models are probed in eval mode. Their parameters, gradients and training flags are left as they were. A model
    that returns probabilities or one output only is refused by a CelmError.

    Args:
        models: M classifiers, or a `ModelStack` of M states of one architecture. States may be a sequence that reads
            each state on access (`LazyStateDicts`): only the states of one batch are then in memory.
        inputs: starting inputs: a tensor `[M, K, *shape]`, a sequence of M tensors such as `LazyInputs`, or the shape
            of one input. For a shape, noise is drawn from `seed`.
        classes: K, at least 2, or the class indices to probe.
        steps: L, the number of Adam steps.
        lr: η, the step size.
        l2: λ, the penalty on ||x||².
        chunk: the largest number of (model, class) pairs in one batch, to bound memory. By default a batch holds as
            many models as fit into the processor's cache.
        seed: seed of the noise.
        transform: raises a function of the logits in place of the logits (`celm.core.calibration.CalibratedLogits`).
        precision: dtype of the gradients. Inputs, Adam and the returned logits stay float32.
        keep_inputs: whether to return the final inputs. Without them, memory does not grow with the number of models.

    >>> model = nn.Linear(3, 2)
    >>> result = probe([model], (3,), 2, steps=5)
    >>> tuple(result.logits.shape), tuple(result.inputs.shape)
    ((1, 2), (1, 2, 3))
    """
    if chunk is not None and chunk < 1:
        raise ArgumentError(f"chunk must be at least 1, not {chunk}")
    if not (isinstance(steps, int) and steps >= 0 and lr > 0 and l2 >= 0):
        raise ArgumentError(
            f"steps={steps!r}, lr={lr!r}, l2={l2!r}", "steps is a whole number, lr is above 0"
        )
    stacks, targets, starts = prepare_probe(models, inputs, classes, seed)
    start_device, shape = starts[0].device, tuple(starts[0].shape[1:])
    if precision is torch.bfloat16:
        check_bfloat16(next(iter(stacks[0].states[0].values())).device)
    class_batch = min(len(targets), chunk or len(targets))
    logits: list[Tensor] = []
    final_inputs: list[Tensor] = []
    measurements: list[Any] = []
    first = 0
    for stack in stacks:
        device = next(iter(stack.states[0].values())).device
        model_batch = max(1, chunk // len(targets)) if chunk else models_per_batch(stack)
        with eval_without_grad(stack.module):
            for offset in range(0, len(stack), model_batch):
                # `list` reads the states of this batch if they are read on access.
                states = list(stack.states[offset : offset + model_batch])
                batch = ModelStack(stack.module, states).to(torch.float32)
                batch_starts = starts[first + offset : first + offset + len(batch)]
                x = torch.stack([start.detach().to(device, torch.float32) for start in batch_starts])
                forward = _float32_forward(batch, shape, precision)
                if transform is not None:
                    forward, batch_measurements = transform.apply(forward, len(batch), shape, device)
                    measurements.append(batch_measurements)
                logits.append(_maximise_logits(forward, x, targets, class_batch, steps, lr, l2).cpu())
                if keep_inputs:
                    final_inputs.append(x.to(start_device))
        first += len(stack)
    return ProbeResult(
        torch.cat(logits),
        torch.cat(final_inputs) if keep_inputs else torch.empty(len(starts), 0),
        None if transform is None else transform.concat(measurements, targets),
    )


def prepare_probe(
    models: Sequence[nn.Module] | ModelStack,
    inputs: Tensor | NDArray[Any] | Sequence[Tensor] | Sequence[int] | int,
    classes: int | Sequence[int],
    seed: int,
) -> tuple[list[ModelStack], list[int], Sequence[Tensor]]:
    """Check a probe's arguments; return the models as stacks, class indices, and M starting inputs `[K, *shape]`."""
    is_stack = isinstance(models, ModelStack)
    stacks = [models] if isinstance(models, ModelStack) else group_by_architecture(check_modules(models))
    targets = as_class_indices(classes)
    count = sum(len(stack) for stack in stacks)
    if not count or not targets:
        raise ArgumentError("a probe needs at least one model and one class")
    starts = _starting_inputs(inputs, seed, count, len(targets))
    if len(starts) != count or starts[0].shape[:1] != (len(targets),):
        shape = (len(starts), *starts[0].shape) if len(starts) else (0,)
        raise ArgumentError(f"inputs must have shape [{count}, {len(targets)}, ...], not {shape}")
    if not is_stack:
        # States of a stack may come from anyone; whoever builds the stack checks its architecture once.
        if isinstance(classes, int):
            check_num_classes(classes)
        for stack in stacks:
            _check_task(stack.module, starts[0], targets)
    return stacks, targets, starts


def _check_task(module: nn.Module, inputs: Tensor, targets: Sequence[int]) -> None:
    """Raise CelmError if the outputs of a model for `inputs` are not logits of these classes."""
    parameter = next(module.parameters(), None)
    x = inputs[:1].detach().clone()  # a model may write over its input
    x = x if parameter is None else x.to(parameter)
    with eval_without_grad(module), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        try:
            output = module(x.requires_grad_() * 1)
        except Exception as error:
            explain_embedding(module, error)
            _check_shape(module, x)
            return  # the probe computes in float32 without inference tensors, and raises any other fault
        logits = require_logits(output)
        if logits.ndim == 2:
            check_output(module, logits, targets)
        with torch.no_grad():
            check_logits(module, x.detach(), logits.detach())


def _check_shape(module: nn.Module, x: Tensor) -> None:
    """Raise CelmError if the model fails on a float32 input without gradients, too, as on an input of a wrong shape."""
    if x.dtype != torch.float32:
        return
    try:
        with torch.no_grad():
            module(x.detach())
    except (RuntimeError, ValueError, IndexError) as error:
        shape = tuple(x.shape[1:])
        raise ArgumentError(
            f"the model fails on inputs of shape {shape}: {format_exception(error)}"
        ) from error


def _starting_inputs(
    inputs: Tensor | NDArray[Any] | Sequence[Tensor] | Sequence[int] | int,
    seed: int,
    models: int,
    classes: int,
) -> Sequence[Tensor]:
    if isinstance(inputs, np.ndarray):
        inputs = as_tensor(inputs, "inputs")
    if isinstance(inputs, Tensor):
        return inputs.unbind() if inputs.ndim else ()
    if isinstance(inputs, Sequence) and len(inputs) and isinstance(inputs[0], Tensor):
        return cast(Sequence[Tensor], inputs)
    return initial_noise(seed, models, classes, as_shape(inputs))


def _float32_forward(batch: ModelStack, shape: tuple[int, ...], precision: torch.dtype) -> BatchedForward:
    """Return float32 logits of a batch, with gradients in `precision`."""
    forward = make_forward(batch, shape)
    if precision is torch.float32:
        return forward
    return ReducedPrecisionForward(forward.logits, make_forward(batch.to(precision), shape), precision)


def _maximise_logits(
    forward: BatchedForward,
    x: Tensor,
    targets: Sequence[int],
    class_batch: int,
    steps: int,
    lr: float,
    l2: float,
) -> Tensor:
    """Raise the logit `targets[j]` of every `x[m, j]` in place; return the final logits `[m, j]`."""
    if class_batch >= len(targets):
        return _ascend(forward, x, torch.tensor(targets, device=x.device), steps, lr, l2)
    logits: list[Tensor] = []
    for first in range(0, len(targets), class_batch):
        columns = slice(first, first + class_batch)
        inputs, classes = x[:, columns].contiguous(), torch.tensor(targets[columns], device=x.device)
        logits.append(_ascend(forward, inputs, classes, steps, lr, l2))
        x[:, columns] = inputs
    return torch.cat(logits, dim=1)


@torch.no_grad()
def _ascend(forward: BatchedForward, x: Tensor, targets: Tensor, steps: int, lr: float, l2: float) -> Tensor:
    """Take `steps` Adam steps on `x` in place; return the logits of `targets` after the last one."""
    moments, squares, count = torch.zeros_like(x), torch.zeros_like(x), torch.zeros((), device=x.device)
    for _ in range(steps):
        # Fused Adam reads a gradient in the memory order of the parameter.
        gradient = forward.input_gradient(x, targets).contiguous()
        # If Adam maximises, weight decay 2λ adds the gradient of -λ||x||² without an extra operation.
        adam(
            [x],
            [gradient],
            [moments],
            [squares],
            [],
            [count],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=2 * l2,
            eps=1e-8,
            maximize=True,
            fused=True,
        )
    return forward.target_logits(x, targets)


def models_per_batch(stack: ModelStack) -> int:
    """Return how many models to probe at a time: on a CPU as many as fit into its cache, elsewhere all."""
    if next(iter(stack.states[0].values())).device.type != "cpu":
        return len(stack)
    return max(1, _CACHE_BYTES // max(1, stack.bytes_per_model()))


def initial_noise(seed: int, models: int, classes: int, shape: tuple[int, ...]) -> LazyInputs:
    """Return standard normal starting inputs of each model, drawn on access."""
    return LazyInputs([partial(model_noise, seed, model, classes, shape) for model in range(models)])


def model_noise(seed: int, model: int | str, classes: int, shape: tuple[int, ...]) -> Tensor:
    """Draw the starting inputs `[K, *shape]` of one model, which is given by its number or name."""
    return torch.randn(classes, *shape, generator=make_generator(seed, "probe", model))


@contextmanager
def eval_without_grad(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode without parameter gradients, and restore it afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    # A tensor made in inference mode is part of no graph, and its flag cannot be set back outside that mode.
    trainable = [p for p in module.parameters() if p.requires_grad and not p.is_inference()]
    try:
        module.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter in trainable:
            parameter.requires_grad_(True)
