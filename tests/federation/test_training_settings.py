"""Settings of the clients' training: smoothed labels, clipped and noisy updates, combinations that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from celm.base.errors import CelmError
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.client_trainer import ClientTask
from celm.models.state_dict import StateDict, load_state
from celm.rules.messages import ServerMessage


def federation(objective: str = "plain", **train: Any) -> Federation:
    tables = {"rule": "fedavg", "objective": objective, "split": "iid", "train": {"batch": 1000, **train}}
    return build_federation(resolve_defaults(Experiment.parse(tables)))


def update(of: Federation, client: str = "client-0", round_number: int = 1) -> StateDict:
    """Return the change of each tensor by one round of a client."""
    task = ClientTask(client, round_number, 0.1, ServerMessage(of.initial_model))
    model = InProcessEngine(of.trainer).train([task])[0].update.model
    return {name: model[name] - tensor for name, tensor in of.initial_model.items()}


def norm(change: StateDict) -> float:
    return float(torch.cat([tensor.double().flatten() for tensor in change.values()]).norm())


def test_labels_are_smoothed_as_torch_smooths_them() -> None:
    """One step on the whole data of a client, against the gradient of torch's own smoothed loss."""
    smoothed = federation(label_smoothing=0.2)
    trainer, data = smoothed.trainer, smoothed.trainer.client_data["client-0"]
    change = update(smoothed)
    load_state(trainer.module, smoothed.initial_model)
    loss = F.cross_entropy(trainer.module(trainer.inputs[data.rows]), data.labels, label_smoothing=0.2)
    gradients = torch.autograd.grad(loss, trainer.parameters)
    for tensor, gradient in zip(change.values(), gradients, strict=True):
        torch.testing.assert_close(tensor, -0.1 * gradient, atol=1e-6, rtol=1e-4)


def test_a_long_update_is_clipped_and_keeps_its_direction() -> None:
    plain = update(federation())
    length = norm(plain)
    clipped = update(federation(dp_clip=length / 4))
    assert norm(clipped) == pytest.approx(length / 4, rel=1e-5)
    for name, tensor in clipped.items():
        torch.testing.assert_close(tensor, plain[name] / 4, atol=1e-6, rtol=1e-4)
    unclipped = update(federation(dp_clip=2 * length))
    for name, tensor in unclipped.items():
        torch.testing.assert_close(tensor, plain[name], atol=1e-7, rtol=0)


def test_noise_has_its_level_and_depends_on_seed_round_and_client() -> None:
    noisy = federation(dp_clip=0.5, dp_noise=2.0)
    clipped, first = update(federation(dp_clip=0.5)), update(noisy)

    def noise(change: StateDict) -> Tensor:
        return torch.cat([(change[name] - tensor).flatten() for name, tensor in clipped.items()])

    assert len(noise(first)) > 1000
    assert float(noise(first).std()) == pytest.approx(1.0, rel=0.1)
    assert abs(float(noise(first).mean())) < 0.1
    assert all(torch.equal(tensor, update(noisy)[name]) for name, tensor in first.items())
    for other in (update(noisy, "client-1"), update(noisy, round_number=2)):
        assert abs(float(torch.corrcoef(torch.stack([noise(first), noise(other)]))[0, 1])) < 0.1


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"dp_noise": 1.0}, "train.dp_noise.*train.dp_clip"),
        ({"optimizer": "adam", "momentum": 0.9}, "train.momentum"),
        ({"optimizer": "adamw"}, "train.optimizer"),
        ({"label_smoothing": 1.0}, "train.label_smoothing"),
        ({"dp_clip": 0.0}, "train.dp_clip"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(train: dict[str, Any], message: str) -> None:
    with pytest.raises(CelmError, match=message):
        Experiment.parse({"train": train})


@pytest.mark.parametrize("tables", [{"rule": "fednova"}, {"objective": "scaffold"}])
def test_methods_that_assume_sgd_refuse_adam(tables: dict[str, Any]) -> None:
    Experiment.parse(tables)
    with pytest.raises(CelmError, match=r"train\.optimizer.*assumes steps of SGD"):
        Experiment.parse({**tables, "train": {"optimizer": "adam"}})


def test_tensors_beside_the_update_would_escape_the_noise() -> None:
    with pytest.raises(CelmError, match=r"train\.dp_clip"):
        update(federation("scaffold", dp_clip=1.0))
