"""Text classifiers of transformers: padding, probe inputs, and what a folder may be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from celm.base.errors import CelmError
from celm.models import build_model
from celm.models.heads import find_head
from celm.models.text_classifier import NO_TOKEN, TextClassifier
from support.text_files import save_model, transformers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), num_labels=4)


def load(folder: Path, classes: int = 4, tokens: int = 8) -> TextClassifier:
    torch.manual_seed(0)
    model = build_model("hf", {"weights": str(folder)}, (tokens,), classes)
    assert isinstance(model, TextClassifier)
    return model.eval()


def test_padding_does_not_change_the_logits(folder: Path) -> None:
    model = load(folder)
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = [[2, 7, 9, 3], [2, 11, 3]]
    padded = torch.tensor([row + [NO_TOKEN] * (8 - len(row)) for row in texts])
    with torch.no_grad():
        alone = torch.cat([reference(torch.tensor([row])).logits for row in texts])
        torch.testing.assert_close(model(padded), alone)


def test_vectors_of_the_embedding_give_the_logits_of_the_tokens(folder: Path) -> None:
    model = load(folder)
    tokens = torch.tensor([[2, 7, 9, 12, 3]])
    vectors = model.model.get_input_embeddings()(tokens)
    assert model.probed_shape(5) == tuple(vectors.shape[1:])
    torch.testing.assert_close(model(vectors), model(tokens))


def test_a_head_for_other_classes_is_new_and_the_encoder_is_kept(folder: Path) -> None:
    model = load(folder, classes=3)
    head = find_head(model, 3)
    assert model(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 3)
    saved = load(folder).state_dict()
    same = [
        name for name, tensor in model.state_dict().items() if torch.equal(tensor, saved[name][: len(tensor)])
    ]
    assert set(saved) - set(same) == {
        f"{head}.weight"
    }  # a new bias is zero, as that of a model never trained


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert"])
def test_other_architectures_take_tokens_and_vectors(tmp_path: Path, kind: str) -> None:
    extra = {"embedding_size": 24} if kind == "albert" else {}
    model = load(save_model(tmp_path / kind, kind, **extra))
    tokens = torch.tensor([[2, 7, 3, NO_TOKEN], [2, 7, 9, 3]])
    longer = torch.cat([tokens, torch.full((2, 4), NO_TOKEN)], dim=1)
    torch.testing.assert_close(model(tokens), model(longer))
    assert model(torch.zeros(2, *model.probed_shape(4))).shape == (2, 4)


def test_unusable_folders_are_one_line(folder: Path, tmp_path: Path) -> None:
    without_weights = shutil.copytree(folder, tmp_path / "without")
    (without_weights / "model.safetensors").unlink()
    pickled = shutil.copytree(without_weights, tmp_path / "pickled")
    torch.save(load(folder).model.state_dict(), pickled / "pytorch_model.bin")
    for name, reason in (
        (str(without_weights), "cannot load"),
        (str(pickled), "cannot load"),
        (str(tmp_path / "absent"), "there is no folder"),
    ):
        with pytest.raises(CelmError, match=reason) as caught:
            build_model("hf", {"weights": name}, (8,), 4)
        assert "\n" not in str(caught.value)
    with pytest.raises(CelmError, match=r"texts of 40 tokens.*dataset\.max_tokens"):
        load(folder, tokens=40)
    with pytest.raises(CelmError, match=r"needs texts, not inputs of shape \(1, 8, 8\)"):
        build_model("hf", {"weights": str(folder)}, (1, 8, 8), 4)


def test_code_in_a_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    hostile, mark = shutil.copytree(folder, tmp_path / "hostile"), tmp_path / "mark"
    (hostile / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass A: pass\n")
    config = json.loads((hostile / "config.json").read_text())
    names = {"AutoConfig": "own.A", "AutoModelForSequenceClassification": "own.A"}
    (hostile / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": names}))
    with pytest.raises(CelmError, match="cannot load"):
        load(hostile)
    assert not mark.exists()
