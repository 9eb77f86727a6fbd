"""`celm.run` and `celm.resume`: the run as an object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import celm
from celm import Experiment
from celm.base.errors import CelmError
from celm.base.files import read_tensors


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> celm.Run:
    experiment = Experiment(
        dataset="digits",
        split={"clients": 3},
        model={"name": "mlp", "widths": [8]},
        rule={"name": "celm", "warmup": 2},
        probe={"steps": 3},
        run={"rounds": 3},
    )
    return celm.run(experiment, out=tmp_path_factory.mktemp("api") / "run")


def test_weights_are_a_simplex_over_all_clients(run: celm.Run) -> None:
    assert list(run.weights) == ["client-0", "client-1", "client-2"]
    assert sum(run.weights.values()) == pytest.approx(1)
    assert run.weights == run.rounds[-1]["client_weights"]


def test_evidence_is_of_the_last_probed_round_client_by_class(run: celm.Run) -> None:
    assert run.evidence is not None
    assert list(run.evidence) == list(run.weights)
    assert all(len(row) == 10 and min(row) >= 0 for row in run.evidence.values())
    assert run.evidence == run.rounds[1]["evidence"]
    assert run.rounds[2]["evidence"] is None


def test_rounds_are_the_records_in_order(run: celm.Run) -> None:
    assert [record["round"] for record in run.rounds] == [1, 2, 3]
    assert run.metrics["accuracy"] == run.accuracy == run.rounds[-1]["accuracy"]
    assert run.metrics["per_class"] == run.rounds[-1]["per_class"]
    assert run.metrics["run"] == str(run.folder.resolve())


def test_the_experiment_is_resolved(run: celm.Run) -> None:
    assert run.experiment.split.name == "frm"
    assert run.experiment.train.lr is not None
    assert run.experiment.run.local_heads == 2


def test_the_model_is_the_global_one_ready_to_use(run: celm.Run) -> None:
    from celm.data.sources.digits import Digits

    model = run.model()
    assert isinstance(model, nn.Module)
    assert not model.training
    data = Digits().load()
    with torch.no_grad():
        right = (model(data.test_inputs).argmax(1) == data.test_labels).double().mean().item()
    assert right == pytest.approx(run.accuracy)
    saved, metadata = read_tensors(run.folder / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())
    assert metadata["input_shape"] == [1, 8, 8]


def test_probe_inputs_are_one_image_a_class_for_every_client(run: celm.Run) -> None:
    inputs = run.probe_inputs()
    assert inputs is not None
    assert sorted(inputs) == list(run.weights)
    assert all(tensor.shape == (10, 1, 8, 8) for tensor in inputs.values())


def test_resume_of_a_finished_run_reads_it(run: celm.Run) -> None:
    assert celm.resume(run.folder) == run
    assert celm.resume(str(run.folder)).metrics == run.metrics


def test_resume_goes_on_and_watch_sees_every_round(tmp_path: Path) -> None:
    experiment = Experiment(rule="fedavg", split={"name": "iid", "clients": 2}, run={"rounds": 4})
    seen: list[tuple[int, int, float]] = []

    def watch(done: int, total: int, record: dict[str, Any]) -> None:
        seen.append((done, total, record["accuracy"]))
        if done == 2 and len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        celm.run(experiment, tmp_path / "run", watch)
    run = celm.resume(tmp_path / "run", watch)
    assert [entry[:2] for entry in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [entry[2] for entry in seen] == [record["accuracy"] for record in run.rounds]


def test_rules_without_evidence_say_so(tmp_path: Path) -> None:
    run = celm.run(
        Experiment(rule="fedavg", split={"name": "iid", "clients": 2}, run={"rounds": 1}), tmp_path / "run"
    )
    assert run.evidence is None
    assert run.probe_inputs() is None
    assert json.loads((tmp_path / "run" / "result.json").read_text())["evidence"] is None


def test_the_default_place_names_the_run_and_never_takes_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = Experiment(rule="fedavg", split={"name": "iid", "clients": 2}, run={"rounds": 1, "seed": 7})
    folders = [celm.run(experiment).folder for _ in range(2)]
    assert [str(folder) for folder in folders] == [
        "runs/digits-iid-fedavg-2-clients-1-rounds-seed7",
        "runs/digits-iid-fedavg-2-clients-1-rounds-seed7-2",
    ]


def test_a_mistake_is_a_celm_error_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CelmError, match=r"split\.min_labels"):
        celm.run(Experiment(split={"name": "pls", "min_labels": 50}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
