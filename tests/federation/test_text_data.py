"""A federation of clients with texts: it learns, and evidence names the holder of a class."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import celm
from celm.base.errors import CelmError
from celm.base.files import read_tensors
from celm.runs.export import export_model
from support.text_files import HELD, save_model, write_reviews

TRAINING = {"optimizer": "adam", "lr": 0.005, "batch": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def reviews(tmp_path: Path) -> dict[str, Any]:
    return {"name": "table", "path": str(write_reviews(tmp_path / "reviews.csv")), "text_column": "review"}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_federation_learns_words_and_head_evidence_names_the_holder(
    tmp_path: Path, model: Path, reviews: dict[str, Any], seed: int
) -> None:
    run = celm.run(
        celm.Experiment(
            dataset=reviews, model=f"hf:{model}", split="natural", evidence="head", rounds=8, seed=seed,
            train=TRAINING, workers=0,
        ),
        tmp_path / "run",
    )  # fmt: skip
    assert run.accuracy > 0.7  # a guess has 0.29
    classes = sorted({label for labels in HELD.values() for label in labels})
    evidence = {name: dict(zip(classes, row, strict=True)) for name, row in run.metrics["evidence"].items()}
    assert max(evidence, key=lambda name: evidence[name]["space"]) == "west"
    assert evidence["north"]["space"] == evidence["south"]["space"] == 0


@pytest.mark.slow
def test_workers_and_a_resumed_run_give_the_same_numbers(
    tmp_path: Path, model: Path, reviews: dict[str, Any]
) -> None:
    settings = {
        "dataset": reviews,
        "model": f"hf:{model}",
        "split": "natural",
        "train": TRAINING,
        "rounds": 2,
    }
    first = celm.run(celm.Experiment(**settings, workers=0), tmp_path / "first")
    second = celm.run(celm.Experiment(**settings, workers=2), tmp_path / "second")
    assert first.weights == second.weights
    assert (first.folder / "model.safetensors").read_bytes() == (
        second.folder / "model.safetensors"
    ).read_bytes()
    copy = tmp_path / "copy"
    shutil.copytree(first.folder, copy)
    assert celm.resume(copy).weights == first.weights


def test_an_exported_program_gives_the_logits_of_the_model(
    tmp_path: Path, model: Path, reviews: dict[str, Any]
) -> None:
    settings = {"dataset": reviews, "model": f"hf:{model}", "rule": "fedavg", "rounds": 1}
    run = celm.run(celm.Experiment(**settings, workers=0), tmp_path / "run")
    export_model(run, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    width = read_tensors(run.folder / "model.safetensors")[1]["input_shape"][0]
    tokens = torch.tensor([[2, 5, 3], [2, 6, 3], [2, 30, 3]])
    padded = torch.nn.functional.pad(tokens, (0, width - 3), value=-1)
    with torch.no_grad():
        torch.testing.assert_close(program(padded), run.model().eval()(padded))


def test_the_preset_trust_keeps_the_evidence_of_the_paper_for_texts(model: Path) -> None:
    with pytest.warns(UserWarning, match="model hf: calibrated evidence did not find"):
        experiment = celm.Experiment(model=f"hf:{model}", preset="trust")
    assert "evidence" not in experiment.rule.options
    assert experiment.rule.options["idle_check"] == "on-drift"
    assert (
        celm.Experiment(model=f"hf:{model}", preset="trust", evidence="head").rule.options["evidence"]
        == "head"
    )


def test_a_model_of_the_hub_is_named_as_a_dataset_is(model: Path) -> None:
    named = celm.Experiment(model="hf:acme/bert").model
    assert (named.name, named.options) == ("hf", {"weights": "acme/bert"})
    assert celm.Experiment(model={"name": f"hf:{model}"}).model.options == {"weights": str(model)}
    with pytest.raises(CelmError, match="'hf:' has no name"):
        celm.Experiment(model="hf:")


def test_texts_and_models_that_do_not_fit_are_one_line(
    tmp_path: Path, model: Path, reviews: dict[str, Any]
) -> None:
    small = save_model(tmp_path / "small", vocab_size=20)
    for settings, reason in (
        ({"dataset": reviews}, "needs a tokenizer"),
        ({"dataset": {**reviews, "tokenizer": str(model)}}, "texts, which this model cannot take"),
        ({"dataset": "heart", "model": f"hf:{model}"}, r"model 'hf' needs texts.*dataset\.text_column"),
        ({"dataset": reviews, "model": f"hf:{small}"}, "the model knows 20 tokens"),
    ):
        with pytest.raises(CelmError, match=reason):
            celm.run(celm.Experiment(**settings, rounds=1, workers=0), tmp_path / "run")
