"""A client's config.json that asks for far more than the global model has: refused before memory is allocated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.models.hugging_face import build_from_folder
from celm.models.hugging_face_limits import check_config_file, limit_construction

transformers = pytest.importorskip("transformers")

MEMORY_BYTES, SECONDS = 1 << 30, 20
TRY_EACH = """
import json, resource, sys, time
from pathlib import Path
import transformers, transformers.models.vit.modeling_vit, torch
import celm

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
lookups = []
sys.addaudithook(lambda event, arguments: lookups.append(str(arguments)) if event == "socket.getaddrinfo" else None)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]),) * 2)
for change in json.loads(sys.argv[3]):
    (folder / "config.json").write_text(json.dumps(config | change))
    start = time.process_time()
    try:
        celm.audit(folder / "global.safetensors", {"a": folder / "global.safetensors"}, model=str(folder), classes=3)
    except celm.CelmError as error:
        print(json.dumps([str(error), time.process_time() - start, lookups]))
"""


def save_vit(folder: Path, name: str = "global.safetensors") -> dict[str, Tensor]:
    """Save a small honest model as a client would, and return its tensors by their names in memory."""
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=3, architectures=["ViTForImageClassification"],
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(folder)
    (folder / "model.safetensors").rename(folder / name)
    return dict(model.state_dict())


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


HOSTILE = {
    "num_labels": {"num_labels": 10**9, "id2label": None, "label2id": None},
    "num_hidden_layers": {"num_hidden_layers": 10**6},
    "hidden_size": {"hidden_size": 10**12},
    "more than": {"num_hidden_layers": 10_000},  # each field is in range; the model is not the global one
    "values": {"hidden_size": 2**24},
    "image": {"image_size": 2**23, "patch_size": 1},
    "values of Mixtral": {"model_type": "mixtral", "architectures": ["MixtralForSequenceClassification"]},
    "experts": {
        "model_type": "mixtral", "architectures": ["MixtralForSequenceClassification"], "num_local_experts": 2**22,
        "hidden_size": 2, "intermediate_size": 1, "num_hidden_layers": 2, "num_attention_heads": 1,
        "num_key_value_heads": 1, "vocab_size": 2,
    },
    "backbone": {
        "model_type": "dpt", "architectures": ["DPTForSemanticSegmentation"], "backbone": "client/repository",
        "use_pretrained_backbone": True,
    },
    "pretrained": {"backbone": "client/repository", "use_pretrained_backbone": True, "num_hidden_layers": 2},
}  # fmt: skip


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space")
def test_a_hostile_configuration_is_refused_quickly_within_bounded_memory(tmp_path: Path) -> None:
    save_vit(tmp_path)
    arguments = [str(tmp_path), str(MEMORY_BYTES), json.dumps(list(HOSTILE.values()))]
    done = subprocess.run(
        [sys.executable, "-c", TRY_EACH, *arguments], capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refusals = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(refusals) == len(HOSTILE)
    for name, (message, seconds, lookups) in zip(HOSTILE, refusals, strict=True):
        assert "config.json" in message, name
        assert "\n" not in message, name
        assert "memory" not in message.lower(), (name, message)  # refused by a check, not by the limit
        assert seconds < SECONDS, (name, message)
        assert lookups == [], name
    for name in ("num_labels", "num_hidden_layers", "hidden_size", "more than"):
        assert name in refusals[list(HOSTILE).index(name)][0]
    assert "nothing is downloaded" in refusals[list(HOSTILE).index("backbone")][0]
    assert "is missing" in refusals[list(HOSTILE).index("experts")][0]


def test_an_honest_configuration_builds_the_model_of_the_global_tensors(tmp_path: Path) -> None:
    tensors = save_vit(tmp_path)
    built = build_from_folder(str(tmp_path), {}, tensors).module
    shapes = {name: tensor.shape for name, tensor in built.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in tensors.items()}
    assert all(tensor.device.type == "cpu" for tensor in built.state_dict().values())


@pytest.mark.parametrize("fields", [{"hidden_size": 18}, {"num_hidden_layers": 2}, {"num_channels": 3}])
def test_a_configuration_of_another_model_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    tensors = save_vit(tmp_path)
    change_config(tmp_path, **fields)
    with pytest.raises(CelmError, match=r"config\.json: the global model does not fit it: tensor"):
        build_from_folder(str(tmp_path), {}, tensors)


@pytest.mark.parametrize(
    "fields",
    [
        {"text_config": {"num_labels": 100_001}},
        {"depths": [2, 10_001]},
        {"vocab_size": -(10**8)},
        {"n_layer": 10**400},
    ],
)
def test_numbers_out_of_range_are_refused_wherever_they_are(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CelmError, match="at most") as refusal:
        check_config_file(tmp_path, {})
    assert len(str(refusal.value)) < 200


def test_large_honest_numbers_and_options_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"rope_theta": 10**9, "vocab_size": 262_144}))
    check_config_file(tmp_path, {"num_labels": 21_843})
    with pytest.raises(CelmError, match="num_labels"):
        check_config_file(tmp_path, {"num_labels": 10**9})


def test_modules_without_tensors_are_counted_too() -> None:
    with pytest.raises(CelmError, match="modules"), limit_construction({"a": torch.zeros(2)}):
        nn.ModuleList(nn.Identity() for _ in range(10**9))


def test_buffers_that_are_not_saved_are_counted_too() -> None:
    with pytest.raises(CelmError, match="values"), limit_construction({"a": torch.zeros(2)}):
        nn.Module().register_buffer("mask", torch.empty(2**20, 2**20), persistent=False)


def test_limits_end_with_the_block() -> None:
    with limit_construction({"a": torch.zeros(2)}):
        assert nn.Linear(2, 2).weight.is_meta
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(1100))
    assert not layers[-1].weight.is_meta
