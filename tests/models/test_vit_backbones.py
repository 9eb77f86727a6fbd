"""Pretrained backbones: against transformers' own forward passes, and checkpoints that cannot be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from celm.base.errors import CelmError
from celm.models import build_model
from celm.models.heads import extract_features, find_head
from celm.models.staged import StagedModel

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "num_channels": 3}
CONFIGS = {
    "vit": ("ViTConfig", "ViTModel", {"intermediate_size": 32}),
    "deit": ("DeiTConfig", "DeiTModel", {"intermediate_size": 32}),
    "dinov2": ("Dinov2Config", "Dinov2Model", {"mlp_ratio": 2}),
    "dinov2_with_registers": ("Dinov2WithRegistersConfig", "Dinov2WithRegistersModel", {"mlp_ratio": 2}),
}


def save_backbone(folder: Path, kind: str, dtype: torch.dtype = torch.float32) -> Path:
    config_class, model_class, options = CONFIGS[kind]
    config = getattr(transformers, config_class)(**SIZES, **options, image_size=20, patch_size=4)
    torch.manual_seed(3)
    getattr(transformers, model_class)(config).to(dtype).save_pretrained(folder / kind)
    return folder / kind


def images(side: int) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def class_tokens(folder: Path, kind: str, inputs: torch.Tensor) -> torch.Tensor:
    """The normalised class token of transformers' own model, with its own interpolation."""
    model = getattr(transformers, CONFIGS[kind][1]).from_pretrained(folder, dtype=torch.float32).eval()
    options = {} if kind.startswith("dinov2") else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        tokens: torch.Tensor = model(pixel_values=inputs, **options).last_hidden_state[:, 0]
    return tokens


@pytest.mark.parametrize("side", [20, 12, 28])
@pytest.mark.parametrize("kind", CONFIGS)
def test_features_are_those_of_transformers_at_any_size(kind: str, side: int, tmp_path: Path) -> None:
    folder, inputs = save_backbone(tmp_path, kind), images(side)
    expected = class_tokens(folder, kind, inputs)
    for trainable in ("all", "last:1", "last:3", "head"):
        options = {"weights": str(folder), "trainable": trainable}
        model = build_model("vit", options, (3, side, side), 5).eval()
        features = extract_features(model, find_head(model, 5), inputs)
        torch.testing.assert_close(features, expected, msg=trainable)
        assert model(inputs).shape == (2, 5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_half_precision_files_give_a_float32_model(kind: str, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path, kind, torch.float16)
    model = build_model("vit", {"weights": str(folder)}, (3, 20, 20), 5).eval()
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    from safetensors.torch import load_file

    saved = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float16}
    position = next(value for name, value in saved.items() if name.endswith("position_embeddings"))
    loaded = model.get_parameter("backbone.embeddings.position_embeddings")
    torch.testing.assert_close(loaded.detach(), position.float(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("trainable", "blocks", "trains_norm"),
    [("last:1", [2], True), ("last:2", [1, 2], True), ("head", [], False)],
)
@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_gradients_reach_the_last_layers_only(
    kind: str, trainable: str, blocks: list[int], trains_norm: bool, tmp_path: Path
) -> None:
    folder = save_backbone(tmp_path, kind)
    model = build_model("vit", {"weights": str(folder), "trainable": trainable}, (3, 20, 20), 5)
    assert isinstance(model, StagedModel)
    model(images(20)).square().sum().backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    whole = getattr(transformers, CONFIGS[kind][1]).from_pretrained(folder)
    per_block = len(list((whole.encoder.layer if kind == "dinov2" else whole.layers)[0].parameters()))
    assert len(with_gradient) == per_block * len(blocks) + 2 * trains_norm + 2
    assert all(name.startswith("trained.") for name in with_gradient)


def test_the_frozen_stage_has_no_dropout_even_while_training(tmp_path: Path) -> None:
    folder = save_backbone(tmp_path, "vit")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.5}))
    model = build_model("vit", {"weights": str(folder), "trainable": "last:1"}, (3, 20, 20), 5)
    assert isinstance(model, StagedModel)
    assert model.training
    torch.testing.assert_close(model.frozen(images(20)), model.frozen(images(20)), rtol=0, atol=0)
    assert not torch.equal(model(images(20)), model(images(20)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"hidden_size": 1 << 23}, "values, but the weight file has"),
        ({"num_hidden_layers": 9_000}, "more than .* the weight file has"),
        ({"model_type": "no_such_type"}, "cannot load"),
        ({"model_type": "resnet"}, "is a 'resnet' model, not an image backbone"),
        ({"hidden_size": 14}, r"tensor '.*' of .* is \[.*16.*\], but its config.json describes \[.*14.*\]"),
        ({"patch_size": 0}, "."),
        ({"image_size": "wide"}, "."),
        ({"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}, "cannot load"),
    ],
)
def test_hostile_configurations_are_refused_in_one_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_backbone(tmp_path, "dinov2")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CelmError, match=message) as caught:
        build_model("vit", {"weights": str(folder)}, (3, 20, 20), 5)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"), [(b"{", "config.json"), (b"[1]", "."), (b"\xff\x00", "."), (None, "config.json")]
)
def test_damaged_folders_are_refused_in_one_line(content: bytes | None, message: str, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path, "vit")
    path = folder / "config.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CelmError, match=message) as caught:
        build_model("vit", {"weights": str(folder)}, (3, 20, 20), 5)
    assert "\n" not in str(caught.value)


def test_a_wide_checkpoint_is_not_interpolated(tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SIZES, intermediate_size=32, image_size=(12, 20), patch_size=4)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "wide")
    options = {"weights": str(tmp_path / "wide")}
    assert build_model("vit", options, (3, 12, 20), 5)(torch.zeros(2, 3, 12, 20)).shape == (2, 5)
    with pytest.raises(CelmError, match="only position embeddings of square images"):
        build_model("vit", options, (3, 20, 20), 5)


def test_a_repository_of_the_hub_is_read_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache as huggingface_hub leaves it after a download; nothing is requested."""
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--acme--backbone"
    snapshots = repository / "snapshots"
    snapshots.mkdir(parents=True)
    save_backbone(snapshots, "dinov2").rename(snapshots / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model = build_model("vit", {"weights": "acme/backbone"}, (3, 20, 20), 5).eval()
    expected = class_tokens(snapshots / commit, "dinov2", images(20))
    torch.testing.assert_close(extract_features(model, "head", images(20)), expected)
    with pytest.raises(CelmError, match="cannot load 'acme/other'") as caught:
        build_model("vit", {"weights": "acme/other"}, (3, 20, 20), 5)
    assert "\n" not in str(caught.value)


def test_the_command_line_refuses_a_missing_folder_with_exit_code_2(celm: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = celm("run", "--dataset", "digits", "--model", "vit", "--set", "model.weights=empty", "--rounds", 1)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "config.json" in done.stderr
