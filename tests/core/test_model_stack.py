"""The three batched forwards of a stack against its models, called one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from celm.core.batched_forward import loop_forward, make_forward, vmap_forward
from celm.core.batched_layers import BatchedReluMlp, layerwise_forward
from celm.core.model_stack import BatchedForward, ModelStack
from celm.core.probe import group_by_architecture, probe

CLASSES = 3


class FunctionalNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.first = nn.Linear(64, 5)
        self.second = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        x = torch.flatten(x, 1)
        return self.second(torch.tanh(self.first(x)).sigmoid())


class InPlace(nn.Module):
    """Overwrites its input and then its activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.second = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0)
        return self.second(F.relu(self.first(x), inplace=True))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)) + x)


class Unused(nn.Module):
    """Two branches of which one is not used, so not the chain it looks like."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        torch.relu(x)
        self.first(x)
        return self.second(x)


class Branching(nn.Module):
    """Which way it goes depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.second = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden.relu() if bool(x.detach().sum() > 0) else hidden.tanh())


class Gated(nn.Module):
    """Which way it goes depends on a buffer, so on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.second = nn.Linear(6, CLASSES)
        self.register_buffer("gate", torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(torch.relu(x) if self.gate > 0 else torch.tanh(x))


class Tied(nn.Module):
    """The decoder of an embedding: the same matrix twice, and the same bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES)
        )
        nn.init.normal_(self.layers[0].bias)
        self.layers[2].weight = self.layers[0].weight
        self.layers[2].bias = self.layers[0].bias

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def twice_the_same_layer() -> nn.Sequential:
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(5, CLASSES))


def with_hook() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    model[0].register_forward_hook(lambda module, inputs, output: output * 3)
    return model


def with_backward_hook() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    model[2].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    return model


def mlp(*activations: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for activation in activations:
        layers += [nn.Linear(5, 5), activation]
    return nn.Sequential(*layers, nn.Linear(5, CLASSES))


VECTOR, IMAGE = (5,), (2, 6, 6)
LAYERWISE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, CLASSES), VECTOR),
    "linear without bias": (lambda: nn.Linear(5, CLASSES, bias=False), VECTOR),
    "mlp": (lambda: mlp(nn.ReLU(), nn.ReLU()), VECTOR),
    "mlp without biases": (
        lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, CLASSES)),
        VECTOR,
    ),
    "smooth activations": (lambda: mlp(nn.GELU(), nn.Tanh(), nn.SiLU(), nn.Softplus(2.0)), VECTOR),
    "piecewise activations": (lambda: mlp(nn.LeakyReLU(0.3), nn.ELU(0.7), nn.SELU(), nn.Sigmoid()), VECTOR),
    "batch norm of rows": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)),
        VECTOR,
    ),
    "in-place relu": (lambda: mlp(nn.ReLU(inplace=True), nn.LeakyReLU(0.2, inplace=True)), VECTOR),
    "in-place relu first": (
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, CLASSES)),
        VECTOR,
    ),
    "in-place relu first on images": (
        lambda: nn.Sequential(
            nn.ReLU(inplace=True), nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, CLASSES)
        ),
        IMAGE,
    ),
    "flattened image": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES)), IMAGE),
    "image without channels": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES)), (3, 4)),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(5, 6), nn.Sequential(nn.Tanh())), nn.Identity(), nn.Linear(6, CLASSES)
        ),
        VECTOR,
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 6), nn.Dropout(0.9), nn.Linear(6, CLASSES)),
        VECTOR,
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
        ),
        IMAGE,
    ),
    "cnn without biases": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES, bias=False)
        ),
        IMAGE,
    ),
    "batch norm cnn": (
        lambda: nn.Sequential(
            nn.BatchNorm2d(2),
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4, affine=False, eps=0.1),
            nn.ReLU(),
            nn.Dropout2d(0.5),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        ),
        IMAGE,
    ),
    "convolutions of every kind": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(4, 6, 2, stride=2, groups=2),
            nn.Conv2d(6, 6, (3, 1), dilation=(1, 2), padding="same", groups=3),
            nn.Conv2d(6, 4, (1, 2), stride=(2, 1), padding=(1, 0)),
            nn.Flatten(),
            nn.Linear(24, CLASSES),
        ),
        IMAGE,
    ),
    "pooling": (
        lambda: nn.Sequential(
            nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False),
            nn.Conv2d(2, 4, 2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.AdaptiveMaxPool2d((3, 2)),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        ),
        IMAGE,
    ),
    "functional": (FunctionalNet, IMAGE),
    "tied": (Tied, VECTOR),
    "the same layer twice": (twice_the_same_layer, VECTOR),
}
NOT_LAYERWISE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, VECTOR),
    "unused branch": (Unused, VECTOR),
    "forward hook": (with_hook, VECTOR),
    "unknown layer": (lambda: nn.Sequential(nn.LayerNorm(5), nn.Linear(5, CLASSES)), VECTOR),
    "learned activation": (lambda: nn.Sequential(nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, CLASSES)), VECTOR),
    "circular padding": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(144, CLASSES)
        ),
        IMAGE,
    ),
    "flattened elsewhere": (
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(36, 1), nn.Flatten(), nn.Linear(2, CLASSES)),
        IMAGE,
    ),
    "rows of images": (
        lambda: nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, CLASSES)),
        IMAGE,
    ),
    "spectral norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(5, 6)), nn.ReLU(), nn.Linear(6, CLASSES)
        ),
        VECTOR,
    ),
}
LOOPED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "branch on data": (Branching, VECTOR),
    "branch on a buffer": (Gated, VECTOR),
}
OTHER: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "writes over its input": (InPlace, VECTOR),
    "backward hook": (with_backward_hook, VECTOR),
}


def family(make: Callable[[], nn.Module], count: int) -> list[nn.Module]:
    """Return models that differ in every parameter and buffer, in training mode."""
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        model = make()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.normal_(part.running_mean)
                nn.init.uniform_(part.running_var, 0.5, 2.0)
                if part.affine:
                    nn.init.normal_(part.weight)
                    nn.init.normal_(part.bias)
        models.append(model)
    return models


def stack_of(models: list[nn.Module]) -> ModelStack:
    """As the probe makes it: the first module in eval mode, the state of each."""
    return ModelStack(copy.deepcopy(models[0]).eval(), [model.state_dict() for model in models])


def one_by_one(models: list[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits `[M, k, K]` and the gradient of their weighted sum, from the models as they are."""
    outputs, gradients = [], []
    for m, model in enumerate(models):
        inputs = x[m].clone().requires_grad_(True)
        output = copy.deepcopy(model).eval()(inputs * 1.0)  # a copy, since a model may overwrite its input
        outputs.append(output.detach())
        gradients.append(torch.autograd.grad((output * logit_weights(output)).sum(), inputs)[0])
    return torch.stack(outputs), torch.stack(gradients)


def logit_weights(output: Tensor) -> Tensor:
    return torch.linspace(-1, 2, output.shape[-1])


def check(forward: BatchedForward, models: list[nn.Module], shape: tuple[int, ...], k: int = 4) -> None:
    torch.manual_seed(77)
    x = torch.randn(len(models), k, *shape)
    original = x.clone()
    x.requires_grad_(True)
    output = forward(x)
    (gradient,) = torch.autograd.grad((output * logit_weights(output)).sum(), x)
    expected, expected_gradient = one_by_one(models, original)
    assert torch.equal(x.detach(), original), "the inputs were overwritten"
    torch.testing.assert_close(output.detach(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERWISE)
@pytest.mark.parametrize("count", [1, 3])
def test_chains_of_supported_layers_are_batched(name: str, count: int) -> None:
    make, shape = LAYERWISE[name]
    models = family(make, count)
    forward = layerwise_forward(stack_of(models), shape)
    assert forward is not None
    check(forward, models, shape)


@pytest.mark.parametrize("name", [*NOT_LAYERWISE, *LOOPED, "backward hook"])
def test_other_modules_are_not_batched_layer_by_layer(name: str) -> None:
    make, shape = {**NOT_LAYERWISE, **LOOPED, **OTHER}[name]
    assert layerwise_forward(stack_of(family(make, 2)), shape) is None


@pytest.mark.parametrize("name", [*LAYERWISE, *NOT_LAYERWISE])
def test_vmap_and_the_loop_agree_with_the_models(name: str) -> None:
    make, shape = {**LAYERWISE, **NOT_LAYERWISE}[name]
    models = family(make, 2)
    check(vmap_forward(stack_of(models)), models, shape)
    check(loop_forward(stack_of(models)), models, shape)


@pytest.mark.parametrize("name", [*NOT_LAYERWISE, *LOOPED, *OTHER])
@pytest.mark.parametrize("count", [1, 3])
def test_the_chosen_forward_agrees_with_the_models(name: str, count: int) -> None:
    make, shape = {**NOT_LAYERWISE, **LOOPED, **OTHER}[name]
    models = family(make, count)
    if name == "branch on a buffer" and count > 1:
        assert len({bool(model.gate > 0) for model in models}) == 2
    check(make_forward(stack_of(models), shape), models, shape)


@pytest.mark.parametrize("name", LOOPED)
def test_the_loop_is_used_if_vmap_fails(name: str) -> None:
    make, shape = LOOPED[name]
    stack = stack_of(family(make, 2))
    with pytest.raises(RuntimeError):
        vmap_forward(stack)(torch.zeros(2, 1, *shape))
    assert make_forward(stack, shape).logits.__qualname__.lstrip("_").startswith("loop_forward")


def test_vmap_is_used_for_a_residual_network() -> None:
    assert (
        make_forward(stack_of(family(Residual, 2)), VECTOR)
        .logits.__qualname__.lstrip("_")
        .startswith("vmap_forward")
    )


def test_a_fault_of_the_model_is_not_hidden() -> None:
    stack = stack_of(family(lambda: nn.Sequential(nn.LayerNorm(5), nn.Linear(4, CLASSES)), 2))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        make_forward(stack, VECTOR)(torch.zeros(2, 1, 5))


@given(
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU, nn.ELU, nn.Identity]), min_size=4, max_size=4),
    count=st.integers(1, 4),
    k=st.integers(1, 4),
    bias=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_mlp_is_batched_and_agrees_with_the_models(
    widths: list[int], kinds: list[type[nn.Module]], count: int, k: int, bias: bool
) -> None:
    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inner, outer, kind in zip(widths, [*widths[1:], 4], kinds, strict=False):
            layers += [nn.Linear(inner, outer, bias=bias), kind()]
        return nn.Sequential(*layers, nn.Linear(4, CLASSES))

    models = family(make, count)
    forward = layerwise_forward(stack_of(models), (widths[0],))
    assert forward is not None
    check(forward, models, (widths[0],), k)


@given(
    channels=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
    count=st.integers(1, 3),
)
@settings(max_examples=15, deadline=None)
def test_any_convolution_is_batched_and_agrees_with_the_models(
    channels: int, kernel: int, stride: int, padding: int, dilation: int, groups: int, count: int
) -> None:
    def make() -> nn.Module:
        convolution = nn.Conv2d(
            groups * channels, 2 * groups, kernel, stride, padding, dilation, groups=groups
        )
        return nn.Sequential(
            convolution, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * groups, CLASSES)
        )

    models, shape = family(make, count), (groups * channels, 6, 5)
    forward = layerwise_forward(stack_of(models), shape)
    assert forward is not None
    check(forward, models, shape, k=2)


# --- models of one architecture -----------------------------------------------------------------------------


class Multiplied(nn.Module):
    """Has settings that are not in its state: a number, a function, a plain tensor, a tuple."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, CLASSES)
        self.factor: object = 1.0
        self.activation: Callable[[Tensor], Tensor] = torch.relu
        self.order: object = (0, 1, 2)
        for key, value in settings.items():
            setattr(self, key, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)) * self.factor)[:, list(self.order)]


def hooked_linear() -> nn.Linear:
    model = nn.Linear(5, CLASSES)
    model.register_forward_hook(lambda module, inputs, output: output * 3)
    return model


def pooled(**settings: object) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, **settings), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )


DIFFERENT: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "activation": (lambda: mlp(nn.ReLU()), lambda: mlp(nn.Tanh()), VECTOR),
    "slope": (lambda: mlp(nn.LeakyReLU(0.1)), lambda: mlp(nn.LeakyReLU(0.9)), VECTOR),
    "text": (lambda: mlp(nn.GELU("none")), lambda: mlp(nn.GELU("tanh")), VECTOR),
    "float": (lambda: Multiplied(factor=1.0), lambda: Multiplied(factor=2.5), VECTOR),
    "function": (
        lambda: Multiplied(activation=torch.relu),
        lambda: Multiplied(activation=torch.tanh),
        VECTOR,
    ),
    "plain tensor": (
        lambda: Multiplied(factor=torch.tensor(1.0)),
        lambda: Multiplied(factor=torch.tensor(2.5)),
        VECTOR,
    ),
    "plain tensors of several values": (
        lambda: Multiplied(factor=torch.ones(5)),
        lambda: Multiplied(factor=torch.full((5,), 2.5)),
        VECTOR,
    ),
    "tuple": (lambda: Multiplied(order=(0, 1, 2)), lambda: Multiplied(order=(2, 0, 1)), VECTOR),
    "padding": (pooled(padding=0), pooled(padding=1), IMAGE),
    "stride": (pooled(stride=1), pooled(stride=2), IMAGE),
    "dilation": (pooled(dilation=1), pooled(dilation=2), IMAGE),
    "hook": (lambda: nn.Linear(5, CLASSES), hooked_linear, VECTOR),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("swapped", [False, True])
def test_models_that_differ_only_in_a_setting_are_not_merged(name: str, swapped: bool) -> None:
    one, other, shape = DIFFERENT[name]
    torch.manual_seed(0)
    models = [other(), one()] if swapped else [one(), other()]
    assert [len(stack) for stack in group_by_architecture(models)] == [1, 1]
    start = torch.randn(2, CLASSES, *shape)
    logits = probe(models, start, CLASSES, steps=0).logits
    expected, _ = one_by_one(models, start)
    torch.testing.assert_close(logits, expected.diagonal(dim1=1, dim2=2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*LAYERWISE, *NOT_LAYERWISE, *LOOPED])
def test_copies_of_one_architecture_are_merged(name: str) -> None:
    make, _ = {**LAYERWISE, **NOT_LAYERWISE, **LOOPED}[name]
    models = family(make, 3)
    models[1].eval()
    models[2].requires_grad_(False)
    # Each hook is another object, and torch makes a new class for every parametrised layer.
    expected = [1, 1, 1] if name in ("forward hook", "spectral norm") else [3]
    assert [len(stack) for stack in group_by_architecture(models)] == expected


@pytest.mark.parametrize("name", [*LAYERWISE, *NOT_LAYERWISE, *LOOPED, *OTHER])
def test_models_probed_together_or_alone_have_the_same_logits(name: str) -> None:
    make, shape = {**LAYERWISE, **NOT_LAYERWISE, **LOOPED, **OTHER}[name]
    models = family(make, 3)
    torch.manual_seed(5)
    start = torch.randn(3, CLASSES, *shape)
    together = probe(models, start, CLASSES, steps=3, lr=0.05)
    for m, model in enumerate(models):
        apart = probe([model], start[m : m + 1], CLASSES, steps=3, lr=0.05)
        torch.testing.assert_close(together.logits[m], apart.logits[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LAYERWISE)
def test_input_gradients_are_those_of_the_target_logits(name: str) -> None:
    make, shape = LAYERWISE[name]
    forward = layerwise_forward(stack_of(family(make, 3)), shape)
    assert forward is not None
    targets = torch.tensor([1, 0, 1, 2])
    x = torch.randn(3, 4, *shape, generator=torch.Generator().manual_seed(3)).requires_grad_(True)
    (expected,) = torch.autograd.grad(forward(x)[:, torch.arange(4), targets].sum(), x)
    torch.testing.assert_close(forward.input_gradient(x.detach(), targets), expected, rtol=1e-4, atol=1e-6)


def test_linear_layers_with_relus_have_an_explicit_gradient() -> None:
    chain = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    assert isinstance(layerwise_forward(stack_of([chain, chain]), (2, 3)), BatchedReluMlp)
    tanh = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    assert not isinstance(layerwise_forward(stack_of([tanh, tanh]), (6,)), BatchedReluMlp)
