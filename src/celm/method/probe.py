"""Logit maximization, Eq. 4-7 and Algorithm 1 of the paper: how far can a model's logit of a class be raised?

    x*_c = argmax_x  s_c(x; w) - λ ||x||²        Adam, L steps of size η from Gaussian noise or a given start
    u_c  = s_c(x*_c; w)                           the logit after the last step

s_c is the pre-softmax logit of class c, ||x||² the sum of squares over all entries of the input. All classes
and all models are optimised in one batch; inputs do not interact, so how the batch is cut (`chunk`) changes the
result by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast, overload

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from celm.base.randomness import generator
from celm.method.calibration import Calibration, calibrate, common_noise, together
from celm.method.forward import forward_of
from celm.method.stacking import Forward, Rounded, Stack

# What `nn.Module` itself keeps and what makes no difference to the forward pass; the rest are a model's settings.
BOOKKEEPING = {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
}
CACHE = 5 << 20
"""Bytes of models that are probed at a time; the best of what was tried with 2 MiB of L2 and 32 MiB of L3 cache."""


@dataclass(frozen=True)
class Probe:
    """What a probe found: the raised logits `[M, K]` and the inputs that raise them `[M, K, *shape]`."""

    logits: Tensor
    inputs: Tensor
    calibration: Calibration | None = None
    """Of a calibrated probe: what its logits are in units of."""


class Starts(Sequence[Tensor]):
    """Where the probe of each model begins, `[K, *shape]`, made when it is asked for: only a few are in memory."""

    def __init__(self, make: Sequence[Callable[[], Tensor]]) -> None:
        self.make = make

    def __len__(self) -> int:
        return len(self.make)

    @overload
    def __getitem__(self, which: int) -> Tensor: ...
    @overload
    def __getitem__(self, which: slice) -> Starts: ...
    def __getitem__(self, which: int | slice) -> Tensor | Starts:
        return Starts(self.make[which]) if isinstance(which, slice) else self.make[which]()


ProbeFunction = Callable[..., Probe]
"""`probe`, or what takes the same arguments and finds the same up to rounding."""


@torch.inference_mode(False)  # of the caller, within which nothing can be differentiated
def probe(
    models: Sequence[nn.Module] | Stack,
    inputs: Tensor | Sequence[Tensor] | Sequence[int],
    classes: int | Sequence[int],
    *,
    steps: int = 200,
    lr: float = 0.01,
    l2: float = 1e-3,
    chunk: int | None = None,
    seed: int = 0,
    calibrated: bool = False,
    precision: torch.dtype = torch.float32,
    keep: bool = True,
) -> Probe:
    """Maximise each class logit of each model.

    `models` are M classifiers, or a `Stack` of M states of one architecture (also `celm.models.averaging.Files`, of
    which only those that are being probed are in memory). They are probed in eval mode and come back as they were:
    parameters, gradients, training flags. `inputs` is where to start: a tensor `[M, K, *shape]`, or a sequence of M
    tensors, such as `Starts`, or just the shape of one input, which draws noise from `seed`. `classes` is K, or the
    class indices to probe. `chunk` bounds memory: at most so many (model, class) pairs at a time; by default as many
    models as stay in the processor's cache. `calibrated` raises logits in units of their spread on noise
    (celm.method.calibration). `precision` is that of the slopes; inputs, Adam and the logits reached stay float32.
    Without `keep`, where the probes end is not told: memory then does not grow with the number of models.

    >>> model = nn.Linear(3, 2)
    >>> found = probe([model], (3,), 2, steps=5)
    >>> tuple(found.logits.shape), tuple(found.inputs.shape)
    ((1, 2), (1, 2, 3))
    """
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    stacks, targets, start = begin(models, inputs, classes, seed)
    shape = tuple(start[0].shape[1:])
    logits = torch.empty(len(start), len(targets))
    kept: list[Tensor] = []
    origin = start[0].device
    at_once = min(len(targets), chunk or len(targets))  # classes of one model
    first = 0
    calibrations: list[Calibration] = []
    for stack in stacks:
        device = next(iter(stack.states[0].values())).device
        several = max(1, chunk // len(targets)) if chunk else within_cache(stack)
        with frozen(stack.module):
            for offset in range(0, len(stack), several):
                # Read here where the states are a sequence that reads each when asked, such as files.
                part = Stack(stack.module, list(stack.states[offset : offset + several])).to(torch.float32)
                rows = slice(first + offset, first + offset + len(part))
                x = torch.stack([begin.detach().to(device, torch.float32) for begin in start[rows]])
                forward = forward_of(part, shape)
                if precision is not torch.float32:
                    forward = Rounded(forward.logits, forward_of(part.to(precision), shape), precision)
                if calibrated:
                    calibrations.append(calibrate(forward, common_noise(seed, len(part), shape, device)))
                    forward = calibrations[-1].applied(forward)
                for left in range(0, len(targets), at_once):
                    columns = slice(left, left + at_once)
                    wanted = torch.tensor(targets[columns], device=device)
                    some = x if at_once == len(targets) else x[:, columns].contiguous()
                    logits[rows, columns] = ascend(forward, some, wanted, steps, lr, l2).cpu()
                    if some is not x:
                        x[:, columns] = some
                if keep:
                    kept.append(x.to(origin))
        first += len(stack)
    found = torch.cat(kept) if keep else torch.empty(len(start), 0)
    return Probe(logits, found, together(calibrations, targets) if calibrated else None)


def begin(
    models: Sequence[nn.Module] | Stack,
    inputs: Tensor | Sequence[Tensor] | Sequence[int],
    classes: int | Sequence[int],
    seed: int,
) -> tuple[list[Stack], list[int], Sequence[Tensor]]:
    """What a probe is asked for, checked: the models as stacks, class indices, and M inputs `[K, *shape]`."""
    if isinstance(models, nn.Module):
        raise TypeError("models must be a list of models, even where it is one")
    stacks = [models] if isinstance(models, Stack) else alike(models)
    targets = list(range(classes)) if isinstance(classes, int) else list(classes)
    count = sum(len(stack) for stack in stacks)
    if not count or not targets:
        raise ValueError("a probe needs at least one model and one class")
    start = beginnings(inputs, seed, count, len(targets))
    if len(start) != count or start[0].shape[:1] != (len(targets),):
        shape = (len(start), *start[0].shape) if len(start) else (0,)
        raise ValueError(f"inputs must have shape [{count}, {len(targets)}, ...], not {shape}")
    return stacks, targets, start


def beginnings(
    inputs: Tensor | Sequence[Tensor] | Sequence[int], seed: int, models: int, classes: int
) -> Sequence[Tensor]:
    if isinstance(inputs, Tensor):
        return inputs.unbind() if inputs.ndim else ()
    if len(inputs) and isinstance(inputs[0], Tensor):
        return cast(Sequence[Tensor], inputs)
    return noise(seed, models, classes, tuple(cast(Sequence[int], inputs)))


@torch.no_grad()
def ascend(forward: Forward, x: Tensor, targets: Tensor, steps: int, lr: float, l2: float) -> Tensor:
    """Raise the logit `targets[j]` of every `x[m, j]`, in place; returns the logits `[m, j]` reached."""
    moments, squares, count = torch.zeros_like(x), torch.zeros_like(x), torch.zeros((), device=x.device)
    for _ in range(steps):
        # Fused Adam reads a gradient in the memory order of the parameter.
        slope = forward.slope(x, targets).contiguous()
        # For Adam that maximises, weight decay 2λ is the gradient of -λ||x||², at no cost of its own.
        adam(
            [x],
            [slope],
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
    return forward.reached(x, targets)


def within_cache(stack: Stack) -> int:
    """How many models to probe at a time: as many as stay in the CPU's cache from step to step; elsewhere all."""
    tensors = stack.states[0].values()
    if next(iter(tensors)).device.type != "cpu":
        return len(stack)
    return max(1, CACHE // max(1, sum(tensor.nbytes for tensor in tensors)))


def noise(seed: int, models: int, classes: int, shape: tuple[int, ...]) -> Starts:
    """Standard normal starting inputs of each model."""
    return Starts([partial(model_noise, seed, model, classes, shape) for model in range(models)])


def model_noise(seed: int, model: int | str, classes: int, shape: tuple[int, ...]) -> Tensor:
    """The starting inputs `[K, *shape]` of one model, by its number or name."""
    return torch.randn(classes, *shape, generator=generator(seed, "probe", model))


def alike(models: Sequence[nn.Module]) -> list[Stack]:
    """Neighbours of one architecture, stacked."""
    stacks: list[Stack] = []
    signature: object = None
    for model in models:
        # Under each of their names, as in a state dict, where tensors are tied.
        state = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        mine = architecture(model)
        if stacks and agree(mine, signature):
            stacks[-1] = Stack(stacks[-1].module, [*stacks[-1].states, state])
        else:
            stacks.append(Stack(model, [state]))
        signature = mine
    return stacks


def architecture(model: nn.Module) -> object:
    """What must agree for two models to be one function of their parameters: structure, shapes, settings."""
    settings = [
        (name, type(part), {key: value for key, value in vars(part).items() if key not in BOOKKEEPING})
        for name, part in model.named_modules()
    ]
    tensors = (*model.named_parameters(), *model.named_buffers())
    shapes = [(name, tensor.shape, tensor.dtype, tensor.device) for name, tensor in tensors]
    return settings, shapes


def agree(one: object, other: object) -> bool:
    """Whether two architectures are surely equal; in doubt they are not, which costs time but is never wrong."""
    try:
        return bool(one == other)
    except Exception:  # a setting may be anything, such as a tensor, that has no single answer
        return False


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """The module in eval mode without parameter gradients, and afterwards exactly as it was."""
    modes = [(part, part.training) for part in module.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        module.eval()
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
