"""The probe against closed forms and an Adam written from its formula in float64."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from celm.core.calibration import CalibratedLogits
from celm.core.model_stack import BatchedForward, ModelStack
from celm.core.probe import LazyInputs, ProbeResult, initial_noise, model_noise, probe
from celm.models.averaging import LazyStateDicts

Array = np.ndarray


def adam_by_formula(gradient: Callable[[Array], Array], x: Array, steps: int, lr: float, l2: float) -> Array:
    """Adam (Kingma & Ba 2015, Algorithm 1) on s(x) - l2 ||x||², in float64."""
    x = x.astype(np.float64)
    first, second = np.zeros_like(x), np.zeros_like(x)
    for t in range(1, steps + 1):
        g = gradient(x) - 2 * l2 * x
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g**2
        x = x + lr * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return x


def tanh_net(seed: int, features: int = 5, hidden: int = 7, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def by_hand(model: nn.Sequential) -> tuple[Callable[[Array], Array], Callable[[int, Array], Array]]:
    """Return logits and their gradients of a tanh net with one hidden layer, derived on paper."""
    W, b = (model[0].weight.detach().double().numpy(), model[0].bias.detach().double().numpy())
    V, c = (model[2].weight.detach().double().numpy(), model[2].bias.detach().double().numpy())

    def logits(x: Array) -> Array:
        return V @ np.tanh(W @ x + b) + c

    def gradient(target: int, x: Array) -> Array:
        return W.T @ ((1 - np.tanh(W @ x + b) ** 2) * V[target])

    return logits, gradient


def probe_by_formula(
    models: list[nn.Sequential], start: Tensor, classes: list[int], steps: int, lr: float, l2: float
) -> tuple[Array, Array]:
    final_inputs = np.empty(start.shape)
    final_logits = np.empty(start.shape[:2])
    for m, model in enumerate(models):
        logits, gradient = by_hand(model)
        for j, target in enumerate(classes):
            x = adam_by_formula(partial(gradient, target), start[m, j].numpy(), steps, lr, l2)
            final_inputs[m, j], final_logits[m, j] = x, logits(x)[target]
    return final_logits, final_inputs


def close(result: Tensor, expected: Array | Tensor, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(result.numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


def same(one: ProbeResult, other: ProbeResult, tolerance: float = 1e-5) -> None:
    close(one.logits, other.logits, tolerance)
    close(one.inputs, other.inputs, tolerance)


# --- closed forms -------------------------------------------------------------------------------------------


def test_linear_model_converges_to_its_penalised_maximum() -> None:
    """argmax of w.x + b - λ||x||² is w / 2λ, where the logit is |w|² / 2λ + b; the sum, not the mean, of squares."""
    torch.manual_seed(0)
    model, l2 = nn.Linear(6, 3), 0.25
    result = probe([model], (6,), 3, steps=3000, lr=0.01, l2=l2)
    w, b = model.weight.detach(), model.bias.detach()
    close(result.inputs[0], w / (2 * l2), 1e-3)
    close(result.logits[0], (w**2).sum(dim=1) / (2 * l2) + b, 1e-3)


def test_constant_gradient_moves_every_entry_by_the_rate_each_step() -> None:
    """Without penalty a linear logit has one gradient w everywhere, and Adam then steps by η sign(w) exactly."""
    torch.manual_seed(1)
    model, start = nn.Linear(6, 3), torch.randn(1, 3, 6)
    result = probe([model], start, 3, steps=20, lr=0.05, l2=0.0)
    w, b = model.weight.detach(), model.bias.detach()
    close(result.inputs[0], start[0] + 20 * 0.05 * w.sign(), 1e-4)
    close(result.logits[0], (w * start[0]).sum(dim=1) + b + 20 * 0.05 * w.abs().sum(dim=1), 1e-4)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(2, 5), st.floats(0.5, 2.0))
@settings(max_examples=10, deadline=None)
def test_the_maximum_of_any_linear_model_is_not_exceeded(
    seed: int, features: int, classes: int, l2: float
) -> None:
    """s - λ||x||² cannot pass |w|² / 4λ + b, from any start, and does not fall below the start's value."""
    torch.manual_seed(seed)
    model, start = nn.Linear(features, classes), torch.randn(1, classes, features)
    result = probe([model], start, classes, steps=300, lr=0.01, l2=l2)
    w, b = model.weight.detach(), model.bias.detach()
    final_logits = result.logits[0] - l2 * (result.inputs[0] ** 2).sum(dim=1)
    initial_value = (w * start[0]).sum(dim=1) + b - l2 * (start[0] ** 2).sum(dim=1)
    assert bool((final_logits <= (w**2).sum(dim=1) / (4 * l2) + b + 1e-4).all())
    assert bool((final_logits >= initial_value - 1e-4).all())


# --- step by step -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 7, 50])
@pytest.mark.parametrize("l2", [0.0, 1e-3, 0.3])
def test_every_step_is_an_adam_step(steps: int, l2: float) -> None:
    models, start = [tanh_net(seed) for seed in range(3)], torch.randn(3, 4, 5)
    result = probe(models, start, 4, steps=steps, lr=0.02, l2=l2)
    logits, inputs = probe_by_formula(models, start, [0, 1, 2, 3], steps, 0.02, l2)
    close(result.inputs, inputs)
    close(result.logits, logits)


def test_the_defaults_are_the_papers() -> None:
    models, start = [tanh_net(3)], torch.randn(1, 4, 5)
    result = probe(models, start, 4)
    logits, inputs = probe_by_formula(models, start, [0, 1, 2, 3], steps=200, lr=0.01, l2=1e-3)
    close(result.inputs, inputs, 1e-3)
    close(result.logits, logits, 1e-3)


def test_the_logit_is_read_after_the_last_step() -> None:
    model, start = tanh_net(4), torch.randn(1, 4, 5)
    result = probe([model], start, 4, steps=3, lr=0.1)
    with torch.no_grad():
        close(result.logits[0], model(result.inputs[0]).diagonal(), 1e-6)
    before, _ = probe_by_formula([model], start, [0, 1, 2, 3], 2, 0.1, 1e-3)
    assert np.abs(result.logits.numpy() - before).min() > 1e-3


def test_no_steps_is_the_start() -> None:
    model, start = tanh_net(5), torch.randn(1, 4, 5)
    result = probe([model], start, 4, steps=0)
    assert torch.equal(result.inputs, start)
    with torch.no_grad():
        close(result.logits[0], model(start[0]).diagonal(), 1e-6)


def test_each_probe_starts_with_a_new_optimiser() -> None:
    """Only the inputs go on from probe to probe; Adam's moments and its step count start anew (Algorithm 1)."""
    model, start = tanh_net(6), torch.randn(1, 4, 5)
    half = probe([model], start, 4, steps=5, lr=0.05)
    twice = probe([model], half.inputs, 4, steps=5, lr=0.05)
    once = probe([model], start, 4, steps=10, lr=0.05)
    _, middle = probe_by_formula([model], start, [0, 1, 2, 3], 5, 0.05, 1e-3)
    logits, final_inputs = probe_by_formula([model], torch.from_numpy(middle), [0, 1, 2, 3], 5, 0.05, 1e-3)
    close(twice.inputs, final_inputs)
    close(twice.logits, logits)
    assert float((twice.inputs - once.inputs).abs().max()) > 1e-3


def test_a_class_subset_keeps_its_order_and_its_starts() -> None:
    models, start = [tanh_net(7), tanh_net(8)], torch.randn(2, 2, 5)
    result = probe(models, start, [3, 1], steps=9, lr=0.05)
    logits, inputs = probe_by_formula(models, start, [3, 1], 9, 0.05, 1e-3)
    close(result.logits, logits)
    close(result.inputs, inputs)


# --- starts -------------------------------------------------------------------------------------------------


def test_given_inputs_are_not_overwritten() -> None:
    start = torch.randn(1, 4, 5)
    original = start.clone()
    result = probe([tanh_net(9)], start, 4, steps=4, lr=0.1)
    assert torch.equal(start, original)
    assert result.inputs.data_ptr() != start.data_ptr()


def test_given_inputs_may_be_doubles_views_or_part_of_a_graph() -> None:
    model, start = tanh_net(10), torch.randn(1, 4, 5)
    expected = probe([model], start, 4, steps=4, lr=0.1)
    graph = (start.clone().requires_grad_(True) * 1.0).requires_grad_(True)
    view = start.transpose(1, 2).contiguous().transpose(1, 2)
    assert not view.is_contiguous()
    for given_start in (start.double(), graph, view):
        result = probe([model], given_start, 4, steps=4, lr=0.1)
        same(result, expected)
        assert result.inputs.dtype is torch.float32
        assert not result.inputs.requires_grad
        assert not result.logits.requires_grad


def test_a_shape_draws_standard_normal_noise_by_seed_and_model() -> None:
    models = [tanh_net(11, features=400)] * 3
    first, again = (probe(models, (400,), 4, steps=0, seed=5).inputs for _ in range(2))
    other = probe(models, (400,), 4, steps=0, seed=6).inputs
    assert torch.equal(first, again)
    assert torch.equal(first, torch.stack(list(initial_noise(5, 3, 4, (400,)))))
    assert torch.equal(first[1], model_noise(5, 1, 4, (400,)))
    assert not torch.equal(first, other)
    rows = torch.cat([first, other]).view(-1, 400)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)  # models, classes and seeds all differ
    assert abs(float(rows.mean())) < 4 / np.sqrt(rows.numel())
    assert abs(float(rows.std()) - 1) < 0.05
    assert float(torch.corrcoef(rows).fill_diagonal_(0).abs().max()) < 0.25


def test_noise_does_not_touch_the_global_generator() -> None:
    model = tanh_net(12)
    before = torch.get_rng_state()
    probe([model, model], (5,), 4, steps=2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


# --- what the models keep -----------------------------------------------------------------------------------


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError("on purpose")


def busy_net() -> nn.Sequential:
    """With everything that a careless probe would change."""
    torch.manual_seed(12)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    model(torch.randn(8, 5)).sum().backward()
    model[4].weight.requires_grad_(False)
    model[0].bias.grad = None
    model.train()
    model[1].eval()
    return model


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    gradients = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    modes = {name: part.training for name, part in model.named_modules()}
    yield
    assert {name: part.training for name, part in model.named_modules()} == modes
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    for name, parameter in model.named_parameters():
        before = gradients[name]
        assert (parameter.grad is None) == (before is None)
        assert before is None or torch.equal(parameter.grad, before)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("count", [1, 3])
def test_models_are_restored(count: int) -> None:
    models = [busy_net() for _ in range(count)]
    models[-1].eval()
    models[-1][3].train()
    with unchanged(models[0]), unchanged(models[-1]):
        probe(models, (5,), 3, steps=4, lr=0.1)


def test_models_are_restored_if_the_probe_fails() -> None:
    good, bad = busy_net(), nn.Sequential(busy_net(), Fails())
    with unchanged(good), unchanged(bad), pytest.raises(ArithmeticError, match="on purpose"):
        probe([good, bad], (5,), 3, steps=4)


class Skipping(nn.Module):
    """A busy net that is no plain chain."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.skip = busy_net(), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + nn.functional.dropout(self.skip(x), 0.5, self.training)


@pytest.mark.parametrize("make", [busy_net, Skipping])
@pytest.mark.parametrize("count", [1, 2])
def test_dropout_and_batch_statistics_are_off(make: Callable[[], nn.Module], count: int) -> None:
    models, start = [make() for _ in range(count)], torch.randn(count, 3, 5)
    result = probe(models, start, 3, steps=0)
    for m, model in enumerate(models):
        expected = copy.deepcopy(model).eval()
        with torch.no_grad():
            close(result.logits[m], expected(start[m]).diagonal(), 1e-5)
    same(probe(models, start, 3, steps=5), probe(models, start, 3, steps=5), 0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_grad_mode_is_ignored_and_restored(mode: Callable[[], torch.no_grad]) -> None:
    model, start = tanh_net(13), torch.randn(1, 4, 5)
    expected = probe([model], start, 4, steps=5, lr=0.1)
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        result = probe([model], start, 4, steps=5, lr=0.1)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
    same(result, expected, 0)


def test_a_model_made_in_inference_mode_is_probed_alike() -> None:
    start = torch.randn(1, 4, 5)
    expected = probe([tanh_net(13)], start, 4, steps=5, lr=0.1)
    with torch.inference_mode():
        model = tanh_net(13)
        same(probe([model], start, 4, steps=5, lr=0.1), expected, 0)
    same(probe([model], start, 4, steps=5, lr=0.1), expected, 0)
    assert all(parameter.requires_grad for parameter in model.parameters())


# --- batches of models and classes --------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 7, 4, 5, 12, 100])
def test_chunks_do_not_change_the_result(chunk: int) -> None:
    models, start = [tanh_net(seed) for seed in range(3)], torch.randn(3, 4, 5)
    same(probe(models, start, 4, steps=20, lr=0.05, chunk=chunk), probe(models, start, 4, steps=20, lr=0.05))


@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 25))
@settings(max_examples=15, deadline=None)
def test_chunks_of_any_size_hold_any_shape(count: int, classes: int, chunk: int) -> None:
    models = [tanh_net(seed, classes=classes) for seed in range(count)]
    start = torch.stack(list(initial_noise(0, count, classes, (5,))))
    result = probe(models, start, classes, steps=3, lr=0.05, chunk=chunk)
    logits, inputs = probe_by_formula(models, start, list(range(classes)), 3, 0.05, 1e-3)
    close(result.logits, logits)
    close(result.inputs, inputs)


def test_chunk_bounds_the_pairs_in_one_call() -> None:
    seen: list[int] = []

    class Watched(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.net = tanh_net(seed)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return self.net(x)

    probe([Watched(0), Watched(1)], (5,), 4, steps=2, chunk=3)
    assert max(seen) <= 3


@given(st.permutations(range(4)))
@settings(max_examples=8, deadline=None)
def test_permuting_models_permutes_results(order: list[int]) -> None:
    models, start = [tanh_net(seed) for seed in range(4)], torch.stack(list(initial_noise(0, 4, 4, (5,))))
    result = probe(models, start, 4, steps=6, lr=0.05)
    moved = probe([models[i] for i in order], start[order], 4, steps=6, lr=0.05)
    same(moved, ProbeResult(result.logits[order], result.inputs[order]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("middle", [nn.ReLU(), nn.Tanh()])
def test_models_of_any_precision_are_probed_in_single(dtype: torch.dtype, middle: nn.Module) -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(3, 8), middle, nn.Linear(8, 2)).to(dtype)
    result = probe([one, one], (3,), 2, steps=5)
    expected = probe([copy.deepcopy(one).float()] * 2, (3,), 2, steps=5)
    assert torch.equal(result.logits, expected.logits)
    assert next(one.parameters()).dtype is dtype


def test_models_of_several_architectures_keep_their_order() -> None:
    models = [tanh_net(0), tanh_net(1, hidden=3), tanh_net(2, hidden=3), tanh_net(3), tanh_net(4)]
    start = torch.randn(5, 4, 5)
    result = probe(models, start, 4, steps=8, lr=0.05)
    logits, inputs = probe_by_formula(models, start, [0, 1, 2, 3], 8, 0.05, 1e-3)
    close(result.logits, logits)
    close(result.inputs, inputs)


def test_a_stack_of_states_is_probed_as_its_models() -> None:
    models, start = [tanh_net(seed) for seed in range(3)], torch.randn(3, 4, 5)
    holder = tanh_net(99)
    with unchanged(holder):
        result = probe(
            ModelStack(holder, [model.state_dict() for model in models]), start, 4, steps=8, lr=0.05
        )
    same(result, probe(models, start, 4, steps=8, lr=0.05), 0)


def test_buffers_outside_the_state_dict_are_those_of_the_module() -> None:
    """State dicts that clients send do not hold non-persistent buffers."""

    class Scaled(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.net = tanh_net(seed)
            self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * self.scale

    models, start = [Scaled(0), Scaled(1)], torch.randn(2, 4, 5)
    result = probe(ModelStack(models[0], [model.state_dict() for model in models]), start, 4, steps=0)
    expected, _ = probe_by_formula([model.net for model in models], start, [0, 1, 2, 3], 0, 0.1, 0.0)
    close(result.logits, 2 * expected, 1e-5)


def test_a_nonfinite_model_does_not_change_the_others() -> None:
    for make, shape in ((tanh_net, (5,)), (small_cnn, (2, 6, 6))):
        models, start = [make(seed) for seed in range(3)], torch.randn(3, 4, *shape)
        alone = [probe([model], start[m : m + 1], 4, steps=6, lr=0.05) for m, model in enumerate(models)]
        with torch.no_grad():
            for parameter in models[1].parameters():
                parameter.fill_(float("nan"))
        with pytest.warns(UserWarning, match="model 1 has values that are not finite"):
            result = probe(models, start, 4, steps=6, lr=0.05)
        assert not result.logits[1].isfinite().any()
        for m in (0, 2):
            same(ProbeResult(result.logits[m : m + 1], result.inputs[m : m + 1]), alone[m])


def small_cnn(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4))


# --- outputs and errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [lambda s: SimpleNamespace(logits=s), lambda s: {"logits": s, "loss": None}],
    ids=["object", "mapping"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_logits_may_come_in_an_object_or_a_mapping(wrap: Callable[[Tensor], object], count: int) -> None:
    class Wrapped(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> object:
            return wrap(self.net(x))

    nets, start = [tanh_net(seed) for seed in range(count)], torch.randn(count, 4, 5)
    result = probe([Wrapped(net) for net in nets], start, 4, steps=5, lr=0.1)
    same(result, probe(nets, start, 4, steps=5, lr=0.1))


def test_a_model_without_logits_is_refused() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(TypeError, match="must return logits, not tuple"):
        probe([nn.Sequential(nn.Linear(3, 2), Pair())], (3,), 2)


def test_nothing_to_probe_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one model and one class"):
        probe([], (3,), 2)
    with pytest.raises(ValueError, match="at least one model and one class"):
        probe([nn.Linear(3, 2)], (3,), [])


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3, 3), (3,), (2, 3)])
def test_inputs_that_are_not_for_each_model_and_class_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"inputs must have shape \[2, 2, \.\.\.\]"):
        probe([nn.Linear(3, 2), nn.Linear(3, 2)], torch.zeros(shape), 2)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transform", [None, CalibratedLogits()])
@pytest.mark.parametrize("network", ["linear", "convolutions", "looped"])
def test_gradients_in_fewer_bits_lead_to_nearly_the_same_logits(
    kind: torch.dtype, transform: CalibratedLogits | None, network: str
) -> None:
    """A kink may lead single logits elsewhere, on each processor others; on average 1.3 % of the rise at most."""

    def build() -> nn.Module:
        if network == "linear":
            return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4))
        norm = nn.BatchNorm2d(8) if network == "convolutions" else nn.GroupNorm(2, 8)
        return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))

    torch.manual_seed(0)
    models = [build() for _ in range(3)]
    before = [copy.deepcopy(model.state_dict()) for model in models]
    exact = probe(models, (3, 4, 4), 4, steps=30, transform=transform)
    rough = probe(models, (3, 4, 4), 4, steps=30, transform=transform, precision=kind)
    assert rough.logits.dtype == rough.inputs.dtype == torch.float32
    assert not torch.equal(rough.inputs, exact.inputs)
    start = probe(models, (3, 4, 4), 4, steps=1, lr=1e-9, transform=transform)
    rise = (exact.logits - start.logits).mean()
    assert rise > 0.2
    assert (rough.logits - exact.logits).abs().mean() < 0.05 * rise
    # The returned logits are those of the models at the returned inputs.
    if transform is None:
        for model, x, final_logits in zip(models, rough.inputs, rough.logits, strict=True):
            torch.testing.assert_close(model.eval()(x).diagonal(), final_logits)
    for model, state in zip(models, before, strict=True):
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_states_in_files_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(7)]
    paths = [tmp_path / f"{i}.safetensors" for i in range(7)]
    for model, path in zip(models, paths, strict=True):
        save_file(model.state_dict(), path)
    alive, most = set(), 0

    class Watched(LazyStateDicts):
        def __getitem__(self, which: Any) -> Any:
            nonlocal most
            if isinstance(which, slice):
                return Watched(self.paths[which])
            state = super().__getitem__(which)
            key = id(state["0.weight"])
            alive.add(key)
            weakref.finalize(state["0.weight"], alive.discard, key)
            most = max(most, len(alive))
            return state

    result = probe(ModelStack(models[0], Watched(paths)), (6,), 3, steps=4, chunk=6)
    torch.testing.assert_close(result.logits, probe(models, (6,), 3, steps=4).logits)
    assert most <= 4  # the batch that is probed, and the next one


@pytest.mark.parametrize("chunk", [None, 2, 5])
@pytest.mark.parametrize("transform", [None, CalibratedLogits()])
def test_starting_inputs_are_made_on_access_and_final_inputs_are_optional(
    chunk: int | None, transform: CalibratedLogits | None
) -> None:
    models, alive, most = [tanh_net(seed) for seed in range(6)], 0, 0

    def make(model: int) -> Tensor:
        nonlocal alive, most

        def gone() -> None:
            nonlocal alive
            alive -= 1

        tensor = model_noise(3, model, 4, (5,))
        alive += 1
        most = max(most, alive)
        weakref.finalize(tensor, gone)
        return tensor

    starts = LazyInputs([partial(make, model) for model in range(6)])
    options: dict[str, Any] = {"steps": 7, "chunk": chunk or 8, "seed": 3, "transform": transform}
    result = probe(models, starts, 4, keep_inputs=False, **options)
    exact = probe(models, (5,), 4, **options)
    assert torch.equal(result.logits, exact.logits)
    assert result.inputs.shape == (6, 0)
    assert exact.inputs.shape == (6, 4, 5)
    assert most <= 3  # a batch of two, and one that was made for its shape


def test_starting_inputs_of_the_wrong_shape_are_refused() -> None:
    models = [tanh_net(seed) for seed in range(2)]
    for wrong in ([torch.zeros(4, 5)], [torch.zeros(3, 5)] * 2, torch.tensor(1.0), torch.zeros(0, 4, 5)):
        with pytest.raises(ValueError, match=r"inputs must have shape \[2, 4, ...\]"):
            probe(models, wrong, 4, steps=1)


@pytest.mark.parametrize("network", ["linear", "convolutions"])
def test_a_step_takes_as_many_operations_for_many_models_as_for_few(network: str, kernels: Any) -> None:
    def model() -> nn.Sequential:
        if network == "linear":
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))

    def operations_per_step(models: int) -> dict[str, int]:
        stack = [model() for _ in range(models)]
        totals = []
        for steps in (3, 7):
            with kernels() as counted:
                probe(stack, (1, 8, 8), 3, steps=steps)
            totals.append(counted.calls)
        return {name: (totals[1][name] - totals[0][name]) // 4 for name in totals[1]}

    few, many = operations_per_step(2), operations_per_step(9)
    assert few == many
    products = {"linear": ("bmm", "baddbmm"), "convolutions": ("convolution", "convolution_backward")}
    assert all(few[name] == 1 for name in products[network])
    assert sum(few.values()) < 60


# --- transforms ---------------------------------------------------------------------------------------------


class Offset:
    """Adds 10 to every logit; measures the number of models in each batch."""

    def apply(
        self, forward: BatchedForward, models: int, shape: tuple[int, ...], device: torch.device
    ) -> tuple[BatchedForward, int]:
        assert (shape, device) == ((5,), torch.device("cpu"))
        return BatchedForward(lambda x: forward(x) + 10), models

    def concat(self, measurements: Any, classes: Any) -> tuple[list[int], list[int]]:
        return list(measurements), list(classes)


def test_a_transform_is_applied_to_each_batch_and_its_measurements_are_joined() -> None:
    models, start = [tanh_net(seed) for seed in range(5)], torch.randn(5, 2, 5)
    plain = probe(models, start, [3, 1], steps=6)
    result = probe(models, start, [3, 1], steps=6, chunk=4, transform=Offset())
    close(result.logits, plain.logits + 10)
    close(result.inputs, plain.inputs)
    assert result.measurements == ([2, 2, 1], [3, 1])
    assert plain.measurements is None
