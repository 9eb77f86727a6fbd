"""The vision transformer, in a tiny configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from celm.base.errors import CelmError
from celm.models import build_model
from celm.models.heads import extract_features, find_head, head_keys

transformers = pytest.importorskip("transformers")

TINY = {"patch_size": 4, "hidden_size": 16, "layers": 2, "heads": 2, "intermediate_size": 32}
SHAPE = (1, 8, 8)


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = transformers.ViTConfig(
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        num_channels=1,
        num_labels=3,
    )
    torch.manual_seed(5)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "weights")
    return tmp_path / "weights"


def test_logits_head_and_features() -> None:
    model = build_model("vit", TINY, SHAPE, 5)
    assert model.training
    assert model(images(3, *SHAPE)).shape == (3, 5)
    assert find_head(model, 5) == "head"
    assert head_keys(model, "head") == ("head.weight", "head.bias")
    assert {key.partition(".")[0] for key in model.state_dict()} == {"backbone", "head"}
    assert extract_features(model, "head", images(3, *SHAPE)).shape == (3, 16)


def test_default_is_vit_b_16() -> None:
    with torch.device("meta"):
        model = build_model("vit", {}, (3, 224, 224), 8)
    # 85.8 M of the backbone (Dosovitskiy et al., table 1: 86 M) and the head.
    embeddings = 3 * 16 * 16 * 768 + 768 + (14 * 14 + 1) * 768 + 768
    layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    expected = embeddings + 12 * layer + 2 * 768 + 768 * 8 + 8
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_many_models_run_at_once_under_vmap_without_a_slow_path() -> None:
    """Warnings are errors here, and PyTorch warns where it must loop over the models instead."""
    built = [build_model("vit", {**TINY, "image_size": 12}, SHAPE, 5) for _ in range(2)]
    parameters, buffers = stack_module_state(built)
    inputs = images(2, 4, *SHAPE).requires_grad_()

    def run(parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        return functional_call(built[0], (parameters, buffers), (x,))

    together = torch.vmap(run)(parameters, buffers, inputs)
    one_by_one = torch.stack([model(x) for model, x in zip(built, inputs, strict=True)])
    torch.testing.assert_close(together, one_by_one)
    (gradient,) = torch.autograd.grad(together.sum(), inputs)
    (expected,) = torch.autograd.grad(one_by_one.sum(), inputs)
    torch.testing.assert_close(gradient, expected)


def test_weights_of_a_folder_are_taken_and_the_head_is_new(
    checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    original = transformers.ViTForImageClassification.from_pretrained(checkpoint)
    capfd.readouterr()
    for classes in (3, 7):  # as many classes as the checkpoint has, and another number
        model = build_model("vit", {"weights": str(checkpoint)}, SHAPE, classes)
        assert capfd.readouterr() == ("", "")
        tokens = original.vit(images(2, *SHAPE)).last_hidden_state[:, 0]
        torch.testing.assert_close(extract_features(model, "head", images(2, *SHAPE)), tokens)
        head = model.get_submodule("head")
        assert isinstance(head, nn.Linear)
        assert head.weight.shape == (classes, 16)
        assert classes != 3 or not torch.equal(head.weight, original.classifier.weight)
        assert model.training
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_inputs_are_resized_to_the_pretrained_side(checkpoint: Path) -> None:
    model = build_model("vit", {"weights": str(checkpoint), "image_size": 8}, (1, 6, 10), 3)
    inputs = images(2, 1, 6, 10)
    resized = nn.functional.interpolate(inputs, (8, 8), mode="bilinear")
    same = build_model("vit", {"weights": str(checkpoint)}, SHAPE, 3)
    same.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(inputs), same(resized))


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({**TINY, "heads": 3}, SHAPE, "model.heads.*3 does not divide hidden_size 16"),
        (TINY, (1, 9, 8), "cannot cut images of 9x8 into patches of 4"),
        (TINY, (64,), r"needs inputs \(channels, height, width\)"),
        ({"layers": 0}, SHAPE, "model.layers.*greater than 0"),
        ({"weights": "{}", "hidden_size": 32}, SHAPE, "model.hidden_size.*is 32.*has 16"),
        ({"weights": "{}"}, (3, 8, 8), "needs 1 channels, not 3"),
        ({"weights": "{}"}, (1, 9, 8), "cannot cut images of 9x8 into patches of 4x4.*model.image_size"),
        ({"weights": "{}-absent"}, SHAPE, "cannot load"),
        ({"weights": "{}", "trainable": "last:3"}, SHAPE, "model.trainable.*last:3.*has 2 blocks"),
        ({"weights": "{}", "trainable": "last:0"}, SHAPE, "model.trainable"),
        ({"weights": "{}", "trainable": "tail"}, SHAPE, "model.trainable"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    checkpoint: Path, options: dict[str, object], shape: tuple[int, ...], message: str
) -> None:
    options = {
        key: value.format(checkpoint) if isinstance(value, str) else value for key, value in options.items()
    }
    with pytest.raises(CelmError, match=message) as caught:
        build_model("vit", options, shape, 3)
    assert "\n" not in str(caught.value)


def test_damaged_or_pickled_or_foreign_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    weights = checkpoint / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(CelmError, match="cannot load"):
        build_model("vit", {"weights": str(checkpoint)}, SHAPE, 3)
    weights.unlink()
    torch.save({}, checkpoint / "pytorch_model.bin")
    with pytest.raises(CelmError, match="cannot load"):
        build_model("vit", {"weights": str(checkpoint)}, SHAPE, 3)
    transformers.BertConfig().save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "model.safetensors").write_bytes(content)
    with pytest.raises(CelmError, match=r"is a 'bert' model, not an image backbone.*dinov2"):
        build_model("vit", {"weights": str(tmp_path / "bert")}, SHAPE, 3)


def test_weights_that_lack_a_layer_are_refused(checkpoint: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    lost = next(name for name in tensors if "layernorm.weight" in name)
    del tensors[lost]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CelmError, match=r"lacks 1 .*layernorm.weight'"):
        build_model("vit", {"weights": str(checkpoint)}, SHAPE, 3)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CelmError, match=r"pip install 'celm\[vit\]'"):
        build_model("vit", TINY, SHAPE, 3)
