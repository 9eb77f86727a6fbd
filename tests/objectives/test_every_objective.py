"""Properties of every objective: settings, training of models with BatchNorm, edge cases, replaced heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.registry import build_component
from celm.core.model_stack import ModelStack
from celm.core.probe import probe
from celm.experiment.config import TrainConfig
from celm.federation.client_trainer import ClientData, ClientTask, ClientTrainer
from celm.models.heads import find_head, head_keys, replace_head, trained_keys
from celm.models.state_dict import describe_mismatch, get_state
from celm.objectives import objectives
from celm.objectives.objective import AnyObjective
from celm.rules.messages import RoundData, ServerMessage
from support.local_training import after_a_file

NAMES = list(objectives.builtins)
CLASSES = 3


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))
        return logits


def workbench(objective: AnyObjective, dtype: torch.dtype = torch.float32) -> ClientTrainer:
    """Three clients: 5 samples in batches of 2, so the last has one; a single sample; none."""
    torch.manual_seed(0)
    module: nn.Module = ConvNet().to(dtype)
    module = objective.adapt_model(module, "head")
    rows = {"client-0": [0, 1, 2, 3, 4], "client-1": [5], "client-2": []}
    x, y = torch.randn(6, 1, 5, 5, dtype=dtype), torch.tensor([0, 0, 2, 1, 0, 2])
    parts = {name: torch.tensor(part, dtype=torch.long) for name, part in rows.items()}
    return ClientTrainer(
        module=module,
        head=find_head(module, CLASSES),
        objective=objective,
        train_config=TrainConfig(lr=0.1, batch=2, epochs=2, momentum=0.5, weight_decay=1e-3),
        seed=3,
        classes=CLASSES,
        inputs=x,
        client_data={name: ClientData(part, y[part]) for name, part in parts.items()},
        test_inputs=x,
        test_labels=y,
    )


def play(bench: ClientTrainer, folder: Path, rounds: int = 3) -> dict[str, Tensor]:
    """Run rounds of plain averaging with the objective's server hook; states go through files."""
    objective = bench.objective
    part = objective.server_hook(head_keys(bench.module, bench.head), trained_keys(bench.module))
    model = get_state(bench.module)
    state = part.init(model) if part else None
    memories: dict[str, Any] = dict.fromkeys(bench.client_data)
    for number in range(1, rounds + 1):
        start = part.broadcast_model(state, model) if part else model
        delivery = ServerMessage(start, part.extra_tensors(state) if part else {})
        outcomes = {
            name: bench.train(ClientTask(name, number, 0.1, delivery, memories[name]))
            for name in bench.client_data
        }
        updates = {name: outcome.update for name, outcome in outcomes.items()}
        for name, outcome in outcomes.items():
            assert describe_mismatch(outcome.update.model, model) is None
            if objective.client_state_type is None:
                assert outcome.client_state is None
            else:
                memories[name] = after_a_file(outcome.client_state, objective.client_state_type, folder)
                assert isinstance(memories[name], objective.client_state_type)
        round = RoundData(number, model, dict.fromkeys(updates, delivery), updates)
        model = round.average([update.model for update in updates.values()], [1.0] * 3)
        if part:
            state = after_a_file(part.update_state(state, round, model, 3), part.state_type, folder)
            model = part.postprocess(state, model)
        assert describe_mismatch(model, updates["client-0"].model) is None
        untouched = updates["client-2"].model
        assert updates["client-2"].num_steps == 0
        assert all(torch.equal(untouched[key], tensor) for key, tensor in start.items())
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_rounds_with_batch_norm_lone_samples_and_an_empty_client(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    objective = objectives.build(name, {})
    first = play(workbench(objective, dtype), tmp_path)
    again = play(workbench(objective, dtype), tmp_path)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert all(tensor.dtype == dtype for tensor in first.values() if tensor.is_floating_point())


@pytest.mark.parametrize("name", NAMES)
def test_the_adapted_model_gives_logits_and_can_be_probed(name: str) -> None:
    bench = workbench(objectives.build(name, {}))
    bench.module.eval()
    with torch.no_grad():
        assert bench.module(bench.inputs).shape == (6, CLASSES)
    start = torch.zeros(2, CLASSES, 1, 5, 5)
    result = probe(ModelStack(bench.module, [get_state(bench.module)] * 2), start, CLASSES, steps=2)
    assert result.logits.shape == (2, CLASSES)
    assert result.logits.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_summary_and_settings_are_described(name: str) -> None:
    assert 20 < len(objectives.summary(name)) < 100
    assert all(setting["about"] for setting in objectives.settings(name))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedprox", {"mu": -0.1}),
        ("moon", {"temperature": 0}),
        ("moon", {"projection": -1}),
        ("fedrs", {"alpha": 1.5}),
        ("feduv", {"variance": -1}),
        ("feddyn", {"alpha": 0}),
        ("fedsam", {"rho": -1}),
        ("fedsol", {"temperature": 0}),
        ("fedgela", {"clip": -1}),
        ("fedaws", {"margin": 2}),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, options: dict[str, float]) -> None:
    with pytest.raises(CelmError, match=f"objective.{next(iter(options))}"):
        build_component(objectives.load(name), options, "objective", name)


@pytest.mark.parametrize("name", ["moon", "fedgela"])
def test_a_head_that_is_not_a_linear_layer_is_refused(name: str) -> None:
    module = nn.Sequential(nn.Conv2d(1, CLASSES, 5), nn.Flatten())
    with pytest.raises(CelmError, match="layer '0' is a Conv2d"):
        objectives.build(name, {}).adapt_model(module, "0")


def test_a_head_is_replaced_under_all_its_names_and_nothing_of_its_size_may_follow() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.classifier = self.fc

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.classifier(inputs).log_softmax(dim=1)
            return out

    part = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2))
    module = replace_head(Twice(), "fc", part)
    x = torch.randn(4, 3)
    torch.testing.assert_close(module(x), part(x).log_softmax(dim=1))
    assert find_head(module, 2) == "fc.1"
    late = nn.ModuleDict({"head": nn.Linear(3, 2), "auxiliary": nn.Linear(3, 2)})
    with pytest.raises(CelmError, match="'head' cannot be replaced"):
        replace_head(late, "head", nn.Sequential(nn.Linear(3, 2)))
