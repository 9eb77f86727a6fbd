"""Names of real `peft` models: those in its files are found in memory, for every kind of adapter that has tensors."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("peft", reason="needs pip install peft")

import peft
import torch
from torch import Tensor, nn

import celm
from celm.models.heads import find_head, head_keys
from celm.models.peft_names import adapter_aliases, outermost_tuned_layer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(x)))
        return out


def adapted(config: Any, seed: int = 0, **options: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(Net(), config, **options)


CONFIGS = {
    "lora": peft.LoraConfig(r=2, target_modules=["body"]),
    "lora with its head": peft.LoraConfig(r=2, target_modules=["body"], modules_to_save=["head"]),
    "lora on its head": peft.LoraConfig(r=2, target_modules=["body", "head"]),
    "dora": peft.LoraConfig(r=2, target_modules=["body"], use_dora=True),
    "biases": peft.LoraConfig(r=2, target_modules=["body"], bias="all"),
    "ia3": peft.IA3Config(target_modules=["body"], feedforward_modules=["body"]),
    "loha": peft.LoHaConfig(r=2, target_modules=["body"]),
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("adapter_name", ["default", "ward"])
def test_every_saved_tensor_is_found_in_memory(kind: str, adapter_name: str) -> None:
    model = adapted(CONFIGS[kind], adapter_name=adapter_name)
    state, aliases = model.state_dict(), adapter_aliases(model)
    saved = peft.get_peft_model_state_dict(model, adapter_name=adapter_name)
    assert saved
    for name, tensor in saved.items():
        assert state[aliases.get(name, name)].data_ptr() == tensor.data_ptr(), name
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {aliases.get(name, name) for name in saved} >= trained


def test_other_models_have_no_aliases() -> None:
    assert adapter_aliases(Net()) == {}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("lora", ["weight", "bias"]),
        ("lora with its head", ["modules_to_save.default.weight", "modules_to_save.default.bias"]),
        (
            "lora on its head",
            ["base_layer.weight", "base_layer.bias", "lora_A.default.weight", "lora_B.default.weight"],
        ),
    ],
)
def test_the_head_is_the_layer_with_its_adapters(kind: str, names: list[str]) -> None:
    model = adapted(CONFIGS[kind])
    layer = outermost_tuned_layer(model, find_head(model, 3))
    assert sorted(head_keys(model, layer)) == sorted(f"base_model.model.head.{name}" for name in names)


def test_the_audit_reads_what_peft_saves() -> None:
    models = {name: adapted(CONFIGS["lora with its head"]) for name in "ab"}
    for seed, model in enumerate(models.values()):
        rng = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.3 * torch.randn(parameter.shape, generator=rng)
    start = adapted(CONFIGS["lora with its head"])
    settings: dict[str, Any] = {"input_shape": (6,), "classes": 3, "probe": {"steps": 3}, "num_starts": 2}
    saved = {name: dict(peft.get_peft_model_state_dict(model)) for name, model in models.items()}
    partial = celm.audit(start, saved, partial=True, **settings)
    assert partial.excluded == {}
    complete = {name: dict(model.state_dict()) for name, model in models.items()}
    assert partial.evidence == celm.audit(start, complete, **settings).evidence
