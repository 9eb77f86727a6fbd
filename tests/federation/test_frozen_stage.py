"""A run of a model with a frozen stage: what is trained, exchanged, saved and probed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import celm
from celm.base.errors import CelmError
from celm.base.files import read_tensors
from celm.base.randomness import make_generator
from celm.data.registry import datasets
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.models.staged import StagedModel, TrainedStage
from celm.study.resource_metrics import upload_megabytes

pytest.importorskip("transformers")

TINY = {"name": "vit", "patch_size": 4, "hidden_size": 16, "layers": 3, "heads": 2, "intermediate_size": 32}


class TwoStages(StagedModel):
    """A user's model in two stages."""

    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU()),
            nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10)),
        )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CELM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def settings(**changes: Any) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {
        "dataset": {"name": "digits"},
        "split": {"name": "pls", "clients": 3},
        "model": {**TINY, "trainable": "last:1"},
        "rule": {"name": "celm"},
        "probe": {"steps": 5},
        "run": {"rounds": 2, "workers": 0},
    }
    for name, table in changes.items():
        tables[name] = {**tables.get(name, {}), **table}
    return tables


def federation(**changes: Any) -> Federation:
    return build_federation(resolve_defaults(Experiment.parse(settings(**changes))))


def digits() -> torch.Tensor:
    return datasets.build("digits", {}).load().test_inputs


@pytest.mark.parametrize("trainable", ["last:1", "last:3", "head"])
def test_cached_training_is_uncached_training(trainable: str, tmp_path: Path) -> None:
    cached, uncached = (
        celm.run(
            Experiment.parse(settings(model={"trainable": trainable}, run={"cache_frozen": is_cached})),
            out=tmp_path / str(is_cached),
        )
        for is_cached in (True, False)
    )
    models = [read_tensors(run.folder / "model.safetensors")[0] for run in (cached, uncached)]
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        torch.testing.assert_close(tensor, models[1][name], rtol=1e-4, atol=1e-5, msg=name)
    assert cached.weights == pytest.approx(uncached.weights, rel=1e-3)


def test_clients_train_and_exchange_the_last_layers_only(tmp_path: Path) -> None:
    built = federation()
    per_block = 16  # two norms, four projections and two layers, each with weight and bias
    assert len(built.initial_model) == per_block + 4
    assert all(name.startswith("trained.") for name in built.initial_model)
    assert built.context.exchanged == tuple(built.initial_model)
    assert built.trainer.inputs.shape[1:] == (5, 16)  # 2 x 2 patches and the class token
    run = celm.run(Experiment.parse(settings()), out=tmp_path / "run")
    saved, _ = read_tensors(run.folder / "model.safetensors")
    for name, tensor in built.frozen_tensors.items():
        assert torch.equal(saved[name], tensor), name
    assert any(not torch.equal(saved[name], tensor) for name, tensor in built.initial_model.items())
    model = run.model()
    with torch.no_grad():
        accuracy = (model(digits()).argmax(1) == datasets.build("digits", {}).load().test_labels).double()
    assert accuracy.mean().item() == pytest.approx(run.metrics["accuracy"])


def test_a_run_resumes_although_the_cache_is_gone(cache: Path, tmp_path: Path) -> None:
    experiment = Experiment.parse(settings(run={"rounds": 3}))
    whole = celm.run(experiment, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(done: int, *_: Any) -> None:
        if done == 1:
            raise Stop

    with pytest.raises(Stop):
        celm.run(experiment, out=tmp_path / "stopped", watch=stop)
    for path in cache.glob("*"):
        path.unlink()
    resumed = celm.resume(tmp_path / "stopped")
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def _ascend(module: nn.Module, name: str, shape: tuple[int, ...], target: int) -> float:
    """Maximise one logit by torch's own Adam from the noise of a model; return the logit."""
    noise = torch.randn(10, *shape, generator=make_generator(42, "probe", name))[target]
    x = noise[None].clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.01, maximize=True)
    for _ in range(5):
        optimizer.zero_grad()
        (module(x)[0, target] - 1e-3 * x.square().sum()).backward()
        optimizer.step()
    with torch.no_grad():
        return float(module(x)[0, target])


@pytest.mark.parametrize(("layer", "shape"), [("frozen", (5, 16)), (None, (1, 8, 8))])
def test_the_probe_starts_at_tokens_or_at_pixels(
    layer: str | None, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Evidence of the first round, by hand: logits above the mean logit of the initial model."""
    tables = settings(probe={"layer": layer} if layer else {}, run={"rounds": 1})
    run = celm.run(Experiment.parse(tables), out=tmp_path / "run")
    built = federation(**{name: tables[name] for name in ("probe", "run")})
    assert built.context.input_shape == shape
    inputs = run.probe_inputs()
    assert inputs is not None
    assert {tuple(x.shape) for x in inputs.values()} == {(10, *shape)}

    from celm.federation.client_trainer import ClientTask
    from celm.federation.model_spec import build_from_spec
    from celm.models.state_dict import load_state
    from celm.rules.messages import ServerMessage

    whole = build_from_spec(built.model_spec).module.eval()
    assert isinstance(whole, StagedModel)
    module: nn.Module = TrainedStage(whole, inputs_encoded=layer == "frozen")
    level = sum(_ascend(module, "", shape, target) for target in range(10)) / 10
    lr = built.experiment.train.lr or 0.0
    message = ServerMessage(built.initial_model)
    update = built.trainer.train(ClientTask("client-1", 1, lr, message)).update
    load_state(module, update.model)
    expected = [max(0.0, _ascend(module, "client-1", shape, target) - level) for target in range(10)]
    assert run.metrics["evidence"]["client-1"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("rule", ["shapfed", "cgsv", "cffl", "rffl"])
def test_rules_that_read_updates_run_on_the_trained_layers(rule: str, tmp_path: Path) -> None:
    run = celm.run(Experiment.parse({**settings(run={"rounds": 1}), "rule": rule}), out=tmp_path / "run")
    assert sum(run.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("objective", ["moon", "fedgela", "fedprox"])
def test_objectives_that_adapt_the_model_keep_the_frozen_stage(objective: str, tmp_path: Path) -> None:
    tables = {**settings(run={"rounds": 1}), "objective": objective, "rule": "fedavg"}
    run = celm.run(Experiment.parse(tables), out=tmp_path / "run")
    assert run.model()(digits()[:2]).shape == (2, 10)


def test_invented_data_of_an_attacker_pass_the_whole_model(tmp_path: Path) -> None:
    tables = settings(run={"rounds": 1}, attack={"name": "invent_data", "client": "client-1", "strength": 2})
    run = celm.run(Experiment.parse(tables), out=tmp_path / "run")
    assert not run.metrics["excluded"]


def test_a_users_model_of_two_stages_is_cached_too(cache: Path, tmp_path: Path) -> None:
    run = celm.run(
        Experiment(dataset="digits", model=TwoStages, rule="fedavg", rounds=1), out=tmp_path / "run"
    )
    assert len(list(cache.glob("digits-frozen-*.safetensors"))) == 2
    assert json.loads((run.folder / "result.json").read_text())["accuracy"] > 0


def test_a_study_counts_the_bytes_of_the_trained_layers(tmp_path: Path) -> None:
    run = celm.run(
        Experiment(dataset="digits", model=TwoStages, rule="fedavg", rounds=1), out=tmp_path / "run"
    )
    trained = 4 * (24 * 16 + 16 + 16 * 10 + 10)
    assert upload_megabytes(run) == pytest.approx(5 * trained / 1e6)


@pytest.mark.slow
def test_worker_processes_give_the_same_bytes(tmp_path: Path) -> None:
    for workers in (0, 2):
        celm.run(Experiment.parse(settings(run={"workers": workers})), out=tmp_path / str(workers))
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": {"layer": "frozen"}, "model": {"trainable": "all"}}, "probe.layer.*no frozen stage"),
        ({"probe": {"layer": "blocks"}}, "probe.layer"),
        ({"model": {"trainable": "last:4"}}, "model.trainable.*3 blocks"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CelmError, match=message):
        federation(**changes)
