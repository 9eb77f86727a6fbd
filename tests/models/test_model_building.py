"""Models by name and by the user's own factory: the model that is built, and one-line errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from celm.base.errors import CelmError
from celm.models import build_model, check_model_name, models


def test_names_are_listed_and_checked_without_importing_torch() -> None:
    code = (
        "import sys; from celm.models import models, check_model_name;"
        "assert models.names()[:3] == ['mlp', 'cnn', 'vit'];"
        "check_model_name('cnn'); check_model_name('a.b:c');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["mpl", "a.b:", ":f", "a b:c", "a/b:c", "a..b:c", ""])
def test_a_bad_model_name_is_refused(name: str) -> None:
    with pytest.raises(CelmError):
        check_model_name(name)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(CelmError, match=r"unknown model 'mpl' .*did you mean 'mlp'.*pkg.module:factory"):
        build_model("mpl", {}, (1, 8, 8), 10)


def test_every_model_has_a_summary() -> None:
    assert all(models.summary(name) for name in models.names())


def test_mlp_is_the_formula_on_its_own_weights() -> None:
    model = build_model("mlp", {"widths": [5, 3]}, (1, 2, 4), 4)
    inputs = torch.randn(6, 1, 2, 4, generator=torch.Generator().manual_seed(0))
    tensors = {name: tensor.detach().double().numpy() for name, tensor in model.named_parameters()}
    hidden = inputs.double().numpy().reshape(6, 8)
    for layer in ("fc1", "fc2"):
        hidden = (hidden @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"]).clip(min=0)
    logits = hidden @ tensors["head.weight"].T + tensors["head.bias"]
    torch.testing.assert_close(model(inputs).double(), torch.from_numpy(logits), rtol=1e-5, atol=1e-6)


def test_mlp_of_the_paper_has_784_128_64_10() -> None:
    model = build_model("mlp", {}, (1, 28, 28), 10)
    assert [type(part).__name__ for part in model.children()] == [
        "Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear",
    ]  # fmt: skip
    assert list(dict(model.named_children())) == ["flatten", "fc1", "relu1", "fc2", "relu2", "head"]
    assert count(model) == 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10


def test_mlp_without_widths_is_linear() -> None:
    model = build_model("mlp", {"widths": []}, (3,), 2)
    zero, one, two = model(torch.zeros(1, 3)), model(torch.ones(1, 3)), model(2 * torch.ones(1, 3))
    torch.testing.assert_close(two - one, one - zero)
    assert count(model) == 3 * 2 + 2


def test_cnn_of_the_paper_has_five_layers_and_1024_features_before_the_first_fully_connected() -> None:
    model = build_model("cnn", {}, (3, 32, 32), 10)
    convolutions = (3 * 9 * 32 + 32) + (32 * 9 * 64 + 64) + (64 * 9 * 64 + 64)
    assert count(model) == convolutions + (1024 * 64 + 64) + (64 * 10 + 10) == 122_570
    assert sum(isinstance(part, nn.Conv2d | nn.Linear) for part in model.modules()) == 5
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(1, 18, 18), (1, 28, 28), (2, 19, 40)])
def test_cnn_takes_any_image_that_leaves_a_pixel(shape: tuple[int, ...]) -> None:
    model = build_model("cnn", {"channels": [2, 3, 4], "hidden": 5}, shape, 7)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(1, 17, 32), (1, 8, 8), (64,), (1, 1, 32, 32)])
def test_cnn_says_what_it_needs(shape: tuple[int, ...]) -> None:
    with pytest.raises(CelmError, match=r"model 'cnn' needs inputs of at least \(channels, 18, 18\)"):
        build_model("cnn", {}, shape, 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"width": [3]}, "unknown setting 'model.width' of model 'mlp' .*'widths'"),
        ("mlp", {"widths": [0]}, "model.widths.0.*greater than 0"),
        ("mlp", {"widths": 128}, "model.widths"),
        ("mlp", {"widths": ["a"]}, "model.widths.0"),
        ("mlp", {"widths": [True]}, "model.widths.0"),
        ("cnn", {"channels": [1, 2]}, "model.channels"),
        ("cnn", {"hidden": -1}, "model.hidden"),
    ],
)
def test_wrong_settings_are_named(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(CelmError, match=message):
        build_model(name, options, (3, 32, 32), 10)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_model_is_a_function_of_the_seed(name: str) -> None:
    built = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        built.append(build_model(name, {}, (1, 20, 20), 3).state_dict())
    assert all(torch.equal(built[0][key], built[1][key]) for key in built[0])
    assert not torch.equal(built[0]["head.weight"], built[2]["head.weight"])


OWN = """
from torch import nn
import torch

class Net(nn.Module):
    def __init__(self, input_shape, classes, width=4):
        super().__init__()
        self.fc = nn.Linear(input_shape[0], width)
        self.norm = nn.BatchNorm1d(width)
        self.norm.eval()
        self.out = nn.Linear(width, classes)
    def forward(self, x):
        return self.out(self.norm(self.fc(x)))

class Nested:
    make = Net

def fixed():
    return nn.Linear(3, 2)

def only_classes(*, classes):
    return nn.Linear(3, classes)

def passes_on(**options):
    return nn.Linear(**options)

def required(depth):
    return nn.Linear(3, 2)

def not_a_module():
    return 3

def broken():
    raise RuntimeError("out of\\nluck")

class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x

def pair():
    return Pair(3, 2)

def squashed(kind):
    last = {"softmax": nn.Softmax(dim=1), "log": nn.LogSoftmax(dim=1), "sigmoid": nn.Sigmoid()}[kind]
    return nn.Sequential(nn.Linear(3, 2), last)

def regression():
    return nn.Linear(3, 1)

instance = nn.Linear(3, 2)
number = 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_nets_of_test.py").write_text(OWN)
    (tmp_path / "own_broken_of_test.py").write_text("def f(:\n")
    (tmp_path / "own_exit_of_test.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        ("Net", {}),
        ("Net", {"width": 6}),
        ("Nested.make", {"width": 6}),
        ("fixed", {}),
        ("only_classes", {}),
        ("passes_on", {"in_features": 3, "out_features": 2}),
    ],
)
def test_own_factories_are_called_with_what_they_name(
    own: Path, factory: str, options: dict[str, object]
) -> None:
    before = list(sys.path)
    model = build_model(f"own_nets_of_test:{factory}", options, (3,), 2)
    assert model(torch.zeros(4, 3)).shape == (4, 2)
    assert model.training
    if "Net" in type(model).__name__:
        assert model.get_submodule("fc").out_features == options.get("width", 4)
        assert not model.get_submodule("norm").training, "the trial run must leave the modes as they were"
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("own_absent_of_test:f", {}, "cannot import 'own_absent_of_test': ModuleNotFoundError"),
        ("own_broken_of_test:f", {}, "cannot import 'own_broken_of_test': SyntaxError"),
        ("own_exit_of_test:f", {}, "cannot import 'own_exit_of_test': SystemExit"),
        ("own_nets_of_test:fixd", {}, "has no 'fixd' .*did you mean 'fixed'"),
        ("own_nets_of_test:zzzzzz", {}, "has no 'zzzzzz'$"),
        ("own_nets_of_test:number", {}, "is int, not a function or class"),
        ("own_nets_of_test:instance", {}, "is itself a module"),
        ("own_nets_of_test:Net", {"widht": 3}, "unknown setting 'model.widht'.*did you mean 'width'"),
        ("own_nets_of_test:fixed", {"a": 3}, "unknown setting 'model.a'.*no settings"),
        ("own_nets_of_test:Net", {"classes": 3}, "'model.classes'.*given by the data"),
        ("own_nets_of_test:required", {}, "missing a required argument: 'depth'"),
        ("own_nets_of_test:passes_on", {"a": 3}, "failed: TypeError"),
        ("own_nets_of_test:not_a_module", {}, "returned int, not an nn.Module"),
        ("own_nets_of_test:broken", {}, "failed: RuntimeError: out of luck"),
        ("own_nets_of_test:pair", {}, "must return logits, not tuple .*`logits`"),
        ("own_nets_of_test:squashed", {"kind": "softmax"}, r"probabilities \(softmax\).*return logits"),
        ("own_nets_of_test:squashed", {"kind": "log"}, r"probabilities \(log-softmax\)"),
        ("own_nets_of_test:squashed", {"kind": "sigmoid"}, r"probabilities \(sigmoid\)"),
        ("own_nets_of_test:regression", {}, "one output for each input, as in regression"),
        ("own_nets_of_test:Net", {"width": -1}, "failed: RuntimeError"),
    ],
)
def test_errors_in_a_user_model_are_one_line(
    own: Path, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(CelmError, match=message) as caught:
        build_model(name, options, (3,), 2)
    assert "\n" not in str(caught.value)


def test_an_own_model_must_fit_inputs_and_classes(own: Path) -> None:
    with pytest.raises(CelmError, match=r"turns inputs \[2, 3\] into \[2, 2\], not \[2, 5\]"):
        build_model("own_nets_of_test:fixed", {}, (3,), 5)
    with pytest.raises(CelmError, match=r"fails on inputs \(4,\)"):
        build_model("own_nets_of_test:fixed", {}, (4,), 2)


def test_one_class_is_no_task(own: Path) -> None:
    with pytest.raises(CelmError, match=r"1 class: .*at least 2"):
        build_model("own_nets_of_test:only_classes", {}, (3,), 1)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_cnn1d_is_the_formula_on_its_own_weights() -> None:
    model = build_model("cnn1d", {"channels": [3, 4, 5]}, (2, 40), 3)
    inputs = torch.randn(1, 2, 40, generator=torch.Generator().manual_seed(0))
    tensors = {name: tensor.detach().double().numpy() for name, tensor in model.named_parameters()}
    signal = inputs[0].double().numpy()
    for number in (1, 2, 3):
        weight, bias = tensors[f"conv{number}.weight"], tensors[f"conv{number}.bias"]
        steps = range(signal.shape[1] - 4)
        signal = np.stack([(weight * signal[:, t : t + 5]).sum((1, 2)) + bias for t in steps], 1).clip(min=0)
        if number < 3:
            even = signal.shape[1] // 2 * 2
            signal = signal[:, :even].reshape(len(signal), -1, 2).max(axis=2)
    logits = tensors["head.weight"] @ signal.mean(axis=1) + tensors["head.bias"]
    torch.testing.assert_close(model(inputs)[0].double(), torch.from_numpy(logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(32,), (6, 128), (1, 32, 32), (1, 2000)])
def test_cnn1d_takes_series_and_spectrograms(shape: tuple[int, ...]) -> None:
    model = build_model("cnn1d", {"channels": [2, 3, 4]}, shape, 7)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)
    with pytest.raises(CelmError, match="at least 32 steps"):
        build_model("cnn1d", {}, (*shape[:-1], 31), 7)
