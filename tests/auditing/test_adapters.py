"""Adapters of real models, each against the same model written by hand."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call

import celm
from celm.auditing.settings import AuditSettings
from celm.base.errors import CelmError
from celm.models.adapter_settings import AdapterSettings
from celm.models.adapters import adapt_for_probe
from support.audited_models import INPUTS, SHAPE, audited, made, network, squashed


def settings(**more: Any) -> AuditSettings:
    return AuditSettings.parse({"classes": ["0", "1", "2"], **more})


def test_a_plain_model_stays_as_it_is() -> None:
    model = made(0)
    assert adapt_for_probe(model, AdapterSettings(), SHAPE, 3) is model


def test_normalisation_and_bounds() -> None:
    model = made(0)
    audit_settings = settings(mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 3.0], bounds=[0.0, 255.0])
    pixels = 255 * torch.sigmoid(INPUTS)
    channel = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    expected = model((pixels - channel[0]) / channel[1])
    torch.testing.assert_close(adapt_for_probe(model, audit_settings.adapters, SHAPE, 3)(INPUTS), expected)
    assert audited(network, mean=[0.5], std=[0.5], bounds=[0.0, 1.0]).excluded == {}


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wrapped(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = network(), kind

    def forward(self, x: Tensor) -> Any:
        logits = self.inner(x)
        return {"logits": logits, "loss": None} if self.kind == "dict" else Answer(logits)


@pytest.mark.parametrize("kind", ["dict", "attribute"])
def test_logits_among_other_outputs(kind: str) -> None:
    result = audited(lambda: Wrapped(kind))
    assert result.scores == pytest.approx(audited(network).scores, abs=1e-5)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.age, self.head = nn.Linear(48, 8), nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, image: Tensor, age: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.image(image.flatten(1)) + self.age(age)))
        return out


def test_one_of_several_inputs_is_probed_and_the_others_are_fixed(tmp_path: Path) -> None:
    held = {"age": torch.tensor([0.5, -1.0])}
    save_file(held, tmp_path / "held.safetensors")
    model = made(0, TwoInputs)
    subject = adapt_for_probe(model, AdapterSettings(argument="image"), SHAPE, 3, fixed_inputs=held)
    torch.testing.assert_close(subject(INPUTS), model(INPUTS, held["age"].expand(5, 2)))
    result = audited(TwoInputs, argument="image", fixed_inputs=str(tmp_path / "held.safetensors"))
    assert list(result.scores) == ["a", "b"]


class Tied(nn.Module):
    """The head's weight is the embedding's, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8, bias=False)
        self.head = nn.Linear(3, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.flatten(1)[:, :8]) @ self.embed.weight + self.head.weight.sum(0)


def test_tied_weights_may_be_saved_under_one_name_and_must_agree() -> None:
    models = {name: made(seed, Tied).state_dict() for seed, name in enumerate("abc")}
    del models["a"]["head.weight"]
    models["c"]["head.weight"] = models["c"]["head.weight"] + 1
    result = celm.audit(made(9, Tied), models, input_shape=SHAPE, classes=3, probe={"steps": 2})
    assert list(result.scores) == ["a", "b"]
    assert "'embed.weight' and 'head.weight' differ" in result.excluded["c"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_probed_in_float32(dtype: torch.dtype) -> None:
    states = {name: made(seed).state_dict() for seed, name in enumerate("ab", start=1)}
    half = {name: {key: value.to(dtype) for key, value in state.items()} for name, state in states.items()}
    rounded = {name: {key: value.float() for key, value in state.items()} for name, state in half.items()}
    audit_settings: dict[str, Any] = {"input_shape": SHAPE, "classes": 3, "probe": {"steps": 3}}
    result, plain = (
        celm.audit(made(0), half, **audit_settings),
        celm.audit(made(0), rounded, **audit_settings),
    )
    assert result.evidence == plain.evidence
    assert "read as float32" in result.document["notes"]["a"]
    assert celm.audit(made(0).to(dtype), half, **audit_settings).excluded == {}


def test_batch_norm_is_probed_with_its_own_statistics() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))

    clients = {name: made(seed, build) for seed, name in enumerate("ab", start=1)}
    clients["b"].load_state_dict(clients["a"].state_dict())
    clients["b"][1].running_mean += 1  # type: ignore[index, operator]
    result = celm.audit(made(0, build), clients, input_shape=SHAPE, classes=3, probe={"steps": 3})
    assert result.evidence["a"] != result.evidence["b"]


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(48, 8)
        self.lora_A = nn.Linear(48, 2, bias=False)
        self.lora_B = nn.Linear(2, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.head(torch.tanh(self.backbone(x) + self.lora_B(self.lora_A(x))))
        return out


def test_adapters_on_a_frozen_backbone() -> None:
    start = made(0, LowRank)
    whole = {name: dict(start.state_dict()) for name in "ab"}
    adapters: dict[str, Mapping[str, Tensor]] = {}
    for seed, name in enumerate("ab", start=1):
        adapters[name] = {
            key: value for key, value in made(seed, LowRank).state_dict().items() if key.startswith("lora")
        }
        whole[name] |= adapters[name]
    audit_settings: dict[str, Any] = {"input_shape": SHAPE, "classes": 3, "probe": {"steps": 3}}
    result = celm.audit(start, adapters, partial=True, **audit_settings)
    assert result.evidence == celm.audit(start, whole, **audit_settings).evidence
    assert "2 of 6 tensors" in result.document["notes"]["a"]
    with pytest.raises(CelmError, match="is missing"):
        celm.audit(start, adapters, **audit_settings)


def test_a_part_of_another_model_is_refused() -> None:
    other = {"x": {"strange": torch.ones(3)}, "a": made(1).state_dict()}
    result = celm.audit(made(0), other, input_shape=SHAPE, classes=3, partial=True, probe={"steps": 2})
    assert list(result.excluded) == ["x"]


def test_a_head_with_more_outputs_than_named_classes() -> None:
    result = audited(lambda: network(7), classes=["cat", "dog"])
    assert all(len(row) == 2 for row in result.evidence.values())
    with pytest.raises(CelmError, match=r"\[4, 3\].*expected \[4, 5\]"):
        audited(network, classes=5)


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.embedding(tokens)).mean(1))
        return out


def test_text_is_probed_in_the_space_of_its_embeddings() -> None:
    model = made(0, Text)
    vectors = torch.randn(5, 7, 6, generator=torch.Generator().manual_seed(2))
    subject = adapt_for_probe(model, AdapterSettings(layer="embedding"), (7, 6), 3)
    torch.testing.assert_close(subject(vectors), model.head(torch.tanh(vectors).mean(1)))  # type: ignore[operator]
    assert audited(Text, shape=(7, 6), layer="embedding").excluded == {}
    with pytest.raises(CelmError, match="did you mean 'embedding'"):
        audited(Text, shape=(7, 6), layer="embeding")
    with pytest.raises(CelmError, match=r"\[7, 6\].*\[7, 5\]"):
        audited(Text, shape=(7, 5), layer="embedding")


def test_a_layer_that_the_model_does_not_call_is_refused() -> None:
    class Unused(Text):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Embedding(20, 6)

    with pytest.raises(CelmError, match="layer 'spare' is not called"):
        audited(Unused, shape=(7, 6), layer="spare")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_an_adapted_model_shares_its_tensors_by_name_also_when_it_is_copied(
    duplicate: Callable[[nn.Module], nn.Module],
) -> None:
    """Layers may have any names, also those of an adapter's settings."""
    model = nn.Sequential(OrderedDict(layer=made(0), model=nn.Linear(3, 3)))
    module = duplicate(adapt_for_probe(model, AdapterSettings(mean=(0.5,), std=(2.0,)), SHAPE, 3))
    assert module.state_dict().keys() == model.state_dict().keys()
    other = nn.Sequential(OrderedDict(layer=made(1), model=nn.Linear(3, 3)))
    found = functional_call(module, dict(other.state_dict()), (INPUTS,))
    torch.testing.assert_close(found, other((INPUTS - 0.5) / 2))
    torch.testing.assert_close(module(INPUTS), model((INPUTS - 0.5) / 2))


def test_a_text_model_of_transformers_is_probed_in_its_embeddings(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=3, architectures=["BertForSequenceClassification"],
    )  # fmt: skip
    for seed, name in enumerate(["start", "clients/a", "clients/b"]):
        torch.manual_seed(seed)
        transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / name)
    result = celm.audit(
        tmp_path / "start" / "model.safetensors",
        tmp_path / "clients",
        model=str(tmp_path / "start"),
        classes=3,
        probe={"steps": 2},
    )
    assert list(result.scores) == ["a", "b"]
    assert result.document["settings"]["argument"] == "inputs_embeds"
    assert result.document["settings"]["input_shape"] == [8, 8]


def test_a_table_of_numbers_is_probed_as_it_is() -> None:
    result = audited(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), shape=(6,))
    assert list(result.scores) == ["a", "b"]


def test_the_callers_models_are_left_as_they_are() -> None:
    start = squashed(nn.Sigmoid)()
    before = {name: tensor.clone() for name, tensor in start.state_dict().items()}
    start.train()
    clients = {"a": squashed(nn.Sigmoid)(), "b": squashed(nn.Sigmoid)()}
    settings = {"output": "sigmoid", "probe": {"steps": 2}, "preset": None}
    celm.audit(start, clients, input_shape=SHAPE, classes=3, **settings)
    assert start.training
    assert isinstance(start[-1], nn.Sigmoid)  # type: ignore[index]
    assert all(torch.equal(tensor, before[name]) for name, tensor in start.state_dict().items())


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"mean": [0.5]}, "mean and std"),
        ({"mean": [0.5, 0.5], "std": [1.0, 1.0]}, "2 numbers.* 3 channels"),
        ({"bounds": [1.0, 0.0]}, "bounds: 1.0 is not below 0.0"),
        ({"output": "nothing"}, "setting 'output'"),
        ({"num_startz": 3}, "did you mean 'num_starts'"),
        ({"fixed_inputs": "x.safetensors"}, "fixed_inputs.*argument"),
        ({"argument": "x", "fixed_inputs": "missing.safetensors"}, "fixed_inputs.*missing.safetensors"),
        ({"classes": ["a", "a"]}, "classes.*'a'"),
        ({"confidence": 1.0}, "setting 'confidence'"),
        ({"device": "moon"}, "device 'moon'"),
    ],
)
def test_inconsistent_settings_are_refused_by_name(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(CelmError, match=reason):
        audited(network, **more)
