"""Adapters of the probe in a live federation: layers, normalisation and probabilities, as in the audit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.flower import CelmStrategy, ContributionResult, ContributionStrategy
from celm.rules.celm import Celm
from support.small_grid import SmallGrid, learner, network

SHIFTS = {"a": 0.1, "b": -0.2, "c": 0.3}


def strategy(
    folder: Path | None = None, model: nn.Module | None = None, **settings: Any
) -> ContributionStrategy:
    usual: dict[str, Any] = {"rule": "celm", "probe": {"steps": 5}, "fraction_evaluate": 0.0, "retries": 0}
    return ContributionStrategy(
        model=model or network(), input_shape=(6,), classes=3, folder=folder, **{**usual, **settings}
    )


def run(one: ContributionStrategy, rounds: int = 3) -> ContributionResult:
    """Run clients that send the head alone."""
    state = network().state_dict()
    arrays = ArrayRecord({name: state[name] for name in ("3.weight", "3.bias")})
    return one.start(all_learners(), arrays, num_rounds=rounds)


def held_out() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    return torch.randn(30, 6, generator=rng), torch.randint(3, (30,), generator=rng)


class Normalised(nn.Module):
    """A network behind its normalisation."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner((x - 0.5) / 2)
        return out


def all_learners() -> SmallGrid:
    return SmallGrid({name: learner(shift) for name, shift in SHIFTS.items()})


def evidence_of(model: nn.Module, **settings: Any) -> Any:
    settings = {"rule_options": {"warmup": 2}, **settings}
    arrays = ArrayRecord(model.state_dict())
    return strategy(model=model, **settings).start(all_learners(), arrays, num_rounds=2).evidence


def assert_same_evidence(one: Any, other: Any) -> None:
    assert one.keys() == other.keys() == {1, 2}
    for number in one:
        for client, row in one[number].items():
            assert row == pytest.approx(other[number][client], abs=1e-4)


def test_inputs_are_probed_before_their_normalisation() -> None:
    expected = evidence_of(Normalised(network()))
    assert_same_evidence(evidence_of(network(), mean=[0.5], std=[2.0]), expected)
    assert evidence_of(network()) != expected


def test_probabilities_are_probed_as_logits() -> None:
    expected = evidence_of(network())
    squashed = nn.Sequential(*network(), nn.Softmax(dim=1))
    assert_same_evidence(evidence_of(squashed, output="softmax"), expected)


def test_probabilities_without_the_setting_are_refused_with_its_name() -> None:
    with pytest.raises(CelmError, match=r"returns probabilities \(softmax\).*set output=\"softmax\""):
        strategy(model=nn.Sequential(*network(), nn.Softmax(dim=1)))


def test_classes_of_a_sigmoid_have_the_papers_evidence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not exclude one another. The rest of the preset stays."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    model = nn.Sequential(*network(), nn.Sigmoid())
    rule = strategy(model=model, output="sigmoid").live_server.server.rule
    assert isinstance(rule, Celm)
    assert (rule.evidence, rule.idle_check, rule.min_warmup) == ("paper", "on-drift", 5)
    assert "not exclusive classes, so the paper's evidence is used" in caplog.text
    caplog.clear()
    strategy(model=model, output="sigmoid", rule_options={"evidence": "paper"})
    strategy(model=model, output="sigmoid", rule="fedavg")
    assert "not exclusive" not in caplog.text
    for rule, options in (("celm", {"evidence": "calibrated"}), (Celm(evidence="calibrated"), None)):
        with pytest.raises(CelmError, match=r"output=sigmoid: calibrated evidence.*\"paper\""):
            strategy(model=model, output="sigmoid", rule=rule, rule_options=options)


def test_tokens_are_probed_at_the_output_of_a_layer() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.inner = nn.Embedding(9, 3), network()

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.inner(self.embedding(tokens))
            return out

    class Vectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.inner = nn.Embedding(9, 3), network()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    torch.manual_seed(0)
    text, vectors = Text(), Vectors()
    settings: dict[str, Any] = {"rule_options": {"evidence": "calibrated"}, "fraction_evaluate": 0.0}
    expected = CelmStrategy(vectors, (2, 3), 3, probe={"steps": 5}, **settings)
    tokens = CelmStrategy(text, (2, 3), 3, probe={"steps": 5}, layer="embedding", **settings)
    results = [
        one.start(all_learners(), ArrayRecord(model.state_dict()), num_rounds=1)
        for one, model in ((expected, vectors), (tokens, text))
    ]
    for client, row in results[0].evidence[1].items():
        assert results[1].evidence[1][client] == pytest.approx(row, abs=1e-5)


def test_validation_data_are_inputs_of_the_model_itself() -> None:
    """The server's data are normalised already; the model's own values of what clients send do not matter."""
    settings: dict[str, Any] = {"rule": "leave_one_out", "partial": True, "validation": held_out()}
    plain = run(strategy(**settings))
    other = network()
    with torch.no_grad():
        other[3].weight.add_(7)  # type: ignore[index, union-attr, operator]
    adapted = run(strategy(model=other, **settings, mean=[0.5], std=[2.0]))
    assert adapted.contributions == plain.contributions


def test_adapters_are_settings_of_the_folder(tmp_path: Path) -> None:
    run(strategy(tmp_path, partial=True, mean=[0.5], std=[2.0]), 1)
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["adapters"] == {"mean": [0.5], "std": [2.0]}
    with pytest.raises(CelmError, match="other settings"):
        run(strategy(tmp_path, partial=True, mean=[0.5], std=[1.0]), 1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"layer": "4"}, "no layer '4'"),
        (
            {"layer": "1"},
            r"fails on inputs of shape \(6,\): RuntimeError.*layer='1': the model is called with 6 tokens",
        ),  # tokens do not reach a linear layer
        ({"output": "softmaxx"}, "output: unknown kind 'softmaxx'.*softmax"),
        ({"mean": [0.5]}, "mean and std: 1 and 0 numbers"),
        ({"mean": [0.5], "std": [0.0]}, "std: 0.0 is not above 0"),
        ({"mean": [0.5] * 4, "std": [1.0] * 4}, "4 numbers, but inputs"),
    ],
)
def test_settings_of_adapters_are_checked(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(CelmError, match=reason):
        strategy(**settings)


def test_the_layer_of_runs_is_refused_with_the_argument_to_use() -> None:
    with pytest.raises(CelmError, match="layer="):
        strategy(probe={"layer": "frozen"})
