"""What real models bring, as one plain function from inputs to logits, which is all that a probe can use.

    probed x -> into bounds -> normalised -> the model, other arguments held, or from one of its layers on
             -> logits among other outputs -> logits of probabilities -> [batch, outputs]

Bounds are kept by a sigmoid, x = low + (high - low) σ(z): the probe moves freely in z, and its start, noise around
zero, is the middle. A model that ends in an `nn.Sigmoid` or `nn.Softmax` is read before it; where these are no layers,
probabilities are turned back, which loses what float32 has rounded to 1 (logits above 16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from celm.auditing.settings import Settings
from celm.base.errors import CelmError, nearest
from celm.base.randomness import generator
from celm.method.stacking import logits_of
from celm.models.factory import one_line

LAST = {"sigmoid": (nn.Sigmoid,), "softmax": (nn.Softmax, nn.LogSoftmax)}
TRIAL = 4
"""Inputs of the one forward pass that is tried before anything is read."""


@dataclass(frozen=True)
class Subject:
    """A model as the probe sees it. `names` are those of its state, by the model's own."""

    module: nn.Module
    names: Mapping[str, str]
    input_shape: tuple[int, ...]

    def state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {self.names[name]: tensor for name, tensor in tensors.items()}


class Adapted(nn.Module):
    """A model behind its adapters; its own state is under `model.`."""

    def __init__(
        self, model: nn.Module, how: Settings, held: Mapping[str, Tensor], shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.model = model
        self.bounds, self.argument, self.layer = how.bounds, how.argument, how.layer
        self.returns = "logits" if how.returns is None or before_last(model, how.returns) else how.returns
        self.held = tuple(held)
        across = (-1, *(1 for _ in shape[1:]))
        constants = {f"held_{i}": held[name] for i, name in enumerate(self.held)}
        if how.mean:
            constants |= {
                "mean": torch.tensor(how.mean).view(across),
                "std": torch.tensor(how.std).view(across),
            }
        for name, tensor in constants.items():
            self.register_buffer(name, tensor, persistent=False)
        self.normalised = bool(how.mean)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs
        if self.bounds is not None:
            low, high = self.bounds
            x = low + (high - low) * torch.sigmoid(x)
        if self.normalised:
            x = (x - self.get_buffer("mean")) / self.get_buffer("std")
        logits = logits_of(self.call(x))
        if self.returns == "sigmoid":
            return torch.logit(logits, eps=6e-8)
        return logits.clamp_min(1e-38).log() if self.returns == "softmax" else logits

    def call(self, x: Tensor) -> Any:
        others = {
            name: self.get_buffer(f"held_{i}").expand(x.shape[0], *self.get_buffer(f"held_{i}").shape)
            for i, name in enumerate(self.held)
        }
        if self.layer is not None:
            return self.from_layer(x, others)
        if self.argument is not None:
            return self.model(**{self.argument: x}, **others)
        return self.model(x)

    def from_layer(self, x: Tensor, others: Mapping[str, Tensor]) -> Any:
        """The model with `x` in the place of the layer's output; what is fed to it up to there does not matter."""

        def instead(_: nn.Module, __: Any, output: Any) -> Tensor:
            if not isinstance(output, Tensor) or output.shape != x.shape:
                found = list(output.shape[1:]) if isinstance(output, Tensor) else type(output).__name__
                raise CelmError(
                    f"layer '{self.layer}' gives {found}, not the input shape {list(x.shape[1:])}"
                )
            return x

        handle = self.model.get_submodule(str(self.layer)).register_forward_hook(instead)
        try:
            if others:
                return self.model(**others)
            tokens = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
            return self.model(**{self.argument: tokens}) if self.argument else self.model(tokens)
        finally:
            handle.remove()


def before_last(model: nn.Module, returns: str) -> bool:
    """Take out the model's last layer where it is the squashing one; says whether it was."""
    if returns == "logits":
        return True
    last = [name for name, part in model.named_modules() if name and isinstance(part, LAST[returns])]
    leaves = [name for name, part in model.named_modules() if name and not list(part.children())]
    if not last or leaves[-1] != last[-1]:
        return False
    parent, _, name = last[-1].rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Identity())
    return True


def adapted(model: nn.Module, how: Settings, shape: tuple[int, ...], held: Mapping[str, Tensor]) -> Subject:
    """The model ready to be probed, tried once; a model that needs no adapter stays as it is, and fast."""
    if how.layer is not None and how.layer not in dict(model.named_modules()):
        raise CelmError(
            f"the model has no layer '{how.layer}'", nearest(how.layer, dict(model.named_modules()))
        )
    if how.mean and len(how.mean) not in (1, shape[0]):
        raise CelmError(f"mean and std have {len(how.mean)} numbers, inputs {shape} have {shape[0]} channels")
    names = list(model.state_dict())
    module: nn.Module = Adapted(model, how, held, shape)
    plain = not (how.bounds or how.mean or how.argument or how.layer or how.returns in ("sigmoid", "softmax"))
    output = trial(module, shape, how)
    if plain:
        with torch.no_grad():
            plain = isinstance(model.eval()(torch.zeros(1, *shape, device=output.device)), Tensor)
    if plain:
        return Subject(model, {name: name for name in names}, shape)
    return Subject(module, {name: f"model.{name}" for name in names}, shape)


def trial(module: nn.Module, shape: tuple[int, ...], how: Settings) -> Tensor:
    """One forward pass over noise: what does not fit is found here, in one line."""
    device = next(iter(module.state_dict().values())).device
    noise = torch.randn(TRIAL, *shape, generator=generator(how.seed, "trial")).to(device)
    try:
        with torch.no_grad():
            output: Tensor = module.eval()(noise)
    except CelmError:
        raise
    except Exception as error:
        raise CelmError(f"the model fails on inputs {shape}: {one_line(error)}") from error
    wanted = how.head_outputs or len(how.classes)
    if output.ndim != 2 or output.shape[0] != TRIAL or output.shape[1] < len(how.classes):
        found = f"turns inputs {[TRIAL, *shape]} into {list(output.shape)}"
        raise CelmError(f"the model {found}, not [{TRIAL}, {wanted}]")
    if how.returns is None and (kind := squashed(module, output)):
        raise CelmError(
            "the model returns probabilities, and a probe needs logits", f"say that it returns {kind}"
        )
    return output


def squashed(module: nn.Module, output: Tensor) -> str | None:
    """What the outputs were squashed by, where that can be told for sure."""
    last = [part for part in module.modules() if not list(part.children())][-1]
    if isinstance(last, nn.Sigmoid):
        return "sigmoid"
    likely = (output, output.exp())  # softmax, log-softmax
    sums = [table.double().sum(dim=1) - 1 for table in likely if bool((table >= 0).all())]
    return "softmax" if output.shape[1] > 1 and any(bool((gap.abs() < 1e-4).all()) for gap in sums) else None
