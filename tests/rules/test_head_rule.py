"""The rule `celm` with head evidence, and with scores from other evidence than the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import celm
from celm.base.errors import CelmError
from celm.core.head_evidence import head_evidence
from celm.core.probe import model_noise
from celm.rules.celm import Celm, CelmState
from celm.rules.celm_parts.head_probe import layer_inputs
from celm.rules.messages import ClientUpdate, RoundData, ServerMessage
from celm.rules.rule import ProbeSettings, ServerContext, WeightingResult

State = dict[str, Tensor]
CLASSES, HOLDINGS = 4, {"a": [0, 1], "b": [0, 1], "c": [2], "d": []}


def network(bias: bool = True, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), activation(), nn.Linear(12, CLASSES, bias=bias))


def context(module: nn.Module, exchanged_head: bool = True) -> ServerContext:
    head = tuple(name for name in module.state_dict() if name.startswith("2."))
    return ServerContext(
        tuple(HOLDINGS),
        CLASSES,
        (6,),
        rounds=100,
        seed=3,
        module=module,
        head=head if exchanged_head else (),
        probe=ProbeSettings(steps=20),
    )


def train(module: nn.Module, start: State, classes: list[int]) -> State:
    """Train on one noisy cluster for each class, by SGD; without classes, return the model as it is."""
    module = copy.deepcopy(module)
    module.load_state_dict(start)
    if classes:
        generator = torch.Generator().manual_seed(sum(classes))
        labels = torch.tensor(classes).repeat_interleave(16)
        inputs = 3 * torch.eye(6)[labels] + 0.3 * torch.randn(len(labels), 6, generator=generator)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(10):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(inputs), labels).backward()
            optimiser.step()
    return {name: value.clone() for name, value in module.state_dict().items()}


def a_round(number: int, start: State, models: Mapping[str, State]) -> RoundData:
    messages = {name: ServerMessage(start) for name in models}
    updates = {name: ClientUpdate(model, 10, 32) for name, model in models.items()}
    return RoundData(number, start, messages, updates)


def play(
    rule: Celm, module: nn.Module, rounds: int, setting: ServerContext | None = None
) -> tuple[WeightingResult[CelmState], list[State], list[dict[str, State]]]:
    """Play rounds and return the last result, and the delivered and the trained models."""
    setting = setting or context(module)
    state, model = rule.init(setting), {name: value.clone() for name, value in module.state_dict().items()}
    delivered, trained = [], []
    for number in range(1, rounds + 1):
        models = {name: train(module, model, classes) for name, classes in HOLDINGS.items()}
        result = rule.compute_weights(state, setting, a_round(number, model, models))
        delivered.append(model)
        trained.append(models)
        state, weights = result.state, result.aggregation_weights
        model = {name: sum(weights[c] * models[c][name] for c in models) for name in model}  # type: ignore[misc]
    return result, delivered, trained


@pytest.fixture
def module() -> nn.Sequential:
    torch.manual_seed(1)
    return network()


def test_scores_are_shares_of_the_mean_claims(module: nn.Sequential) -> None:
    result, delivered, trained = play(Celm(evidence="head", warmup=5), module, rounds=3)
    claims = [
        head_evidence(start, list(models.values())) for start, models in zip(delivered, trained, strict=True)
    ]
    mean = torch.stack(claims).mean(dim=0)
    expected = celm.scores(mean)
    assert result.scores is not None
    assert result.evidence is not None
    torch.testing.assert_close(torch.tensor(list(result.scores.values()), dtype=torch.float64), expected)
    torch.testing.assert_close(torch.tensor(list(result.evidence.values()), dtype=torch.float64), claims[-1])


def test_only_what_clients_hold_is_claimed_and_the_idle_client_weighs_nothing(module: nn.Sequential) -> None:
    result, _, _ = play(Celm(evidence="head", warmup=5), module, rounds=5)
    assert result.evidence is not None
    for name, classes in HOLDINGS.items():
        claimed = [c for c, value in enumerate(result.evidence[name]) if value > 0.01]
        assert claimed == classes
    assert result.client_weights["d"] == 0
    assert result.diagnostics["idle"] == ["d"]
    # Three classes are held; a and b share two of them.
    assert result.client_weights["a"] == pytest.approx(1 / 3, abs=0.03)
    assert result.client_weights["c"] == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize(
    "settings", [{"evidence": "head"}, {"evidence": "calibrated", "scores_from": "head"}]
)
def test_agreement_is_reported_beside_scores_that_stay(
    module: nn.Sequential, settings: dict[str, str]
) -> None:
    """v is that of the first round, by the formula of celm.core; the claims are means over rounds."""
    plain, delivered, trained = play(Celm(warmup=5, **settings), module, rounds=3)  # type: ignore[arg-type]
    gated, _, _ = play(Celm(warmup=5, agreement=2.0, **settings), module, rounds=3)  # type: ignore[arg-type]
    assert gated.scores == plain.scores
    assert gated.client_weights == plain.client_weights
    assert "agreement_scores" not in plain.diagnostics
    rounds = list(zip(delivered, [list(models.values()) for models in trained], strict=True))
    claims = [head_evidence(start, models) for start, models in rounds]
    first = head_evidence(rounds[0][0], rounds[0][1], agreement=2.0)
    v_squared = torch.where(claims[0] > 0, first / claims[0], 0.0)
    expected = celm.scores(v_squared * torch.stack(claims).mean(dim=0)).tolist()
    assert gated.diagnostics["agreement_scores"] == pytest.approx(dict(zip(HOLDINGS, expected, strict=True)))


def test_agreement_needs_head_evidence(module: nn.Sequential) -> None:
    with pytest.raises(CelmError, match=r"rule\.agreement: only head evidence"):
        Celm(evidence="calibrated", agreement=2.0).init(context(module))


def test_an_idle_round_counts_as_a_round_without_claims(module: nn.Sequential) -> None:
    setting, rule = context(module), Celm(evidence="head", warmup=5)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    honest = {name: train(module, start, classes) for name, classes in HOLDINGS.items() if classes}
    lazy = {**honest, "b": start}
    state = rule.compute_weights(rule.init(setting), setting, a_round(1, start, lazy)).state
    state = rule.compute_weights(state, setting, a_round(2, start, honest)).state
    assert state.probe.claims["a"].total.sum() == pytest.approx(2)
    assert state.probe.claims["b"].total.sum() == pytest.approx(1)
    assert state.probe.claims["b"].rounds == 2


def test_a_round_in_which_nobody_trained_changes_nothing(module: nn.Sequential) -> None:
    setting, rule = context(module), Celm(evidence="head", warmup=5)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    result = rule.compute_weights(
        rule.init(setting), setting, a_round(1, start, dict.fromkeys(HOLDINGS, start))
    )
    assert result.client_weights == dict.fromkeys(HOLDINGS, 0.25)
    assert set(result.scores.values()) == {0.0}  # type: ignore[union-attr]


def test_a_head_without_bias_is_read_by_rows() -> None:
    torch.manual_seed(1)
    module = network(bias=False)
    result, _, _ = play(Celm(evidence="head", warmup=5), module, rounds=3)
    assert result.client_weights["d"] == 0
    assert result.client_weights["c"] == pytest.approx(1 / 3, abs=0.05)


def test_signed_features_without_bias_are_refused() -> None:
    torch.manual_seed(1)
    with pytest.raises(CelmError, match="features can be negative") as error:
        play(Celm(evidence="head", warmup=5), network(bias=False, activation=nn.Tanh), rounds=1)
    assert "calibrated" in str(error.value.hint)


def test_a_head_that_is_not_exchanged_is_refused(module: nn.Sequential) -> None:
    with pytest.raises(CelmError, match="needs the last linear layer"):
        play(Celm(evidence="head", warmup=5), module, 1, context(module, exchanged_head=False))


def test_layer_inputs_are_those_of_the_given_state(module: nn.Sequential) -> None:
    noise = model_noise(0, "", 5, (6,))
    state = {name: 2 * value for name, value in module.state_dict().items()}
    expected = torch.relu(noise @ state["0.weight"].T + state["0.bias"])
    torch.testing.assert_close(layer_inputs(context(module), state, "2", noise), expected)


@pytest.mark.parametrize("evidence", ["paper", "calibrated"])
def test_scores_from_another_evidence_leave_the_weights(module: nn.Sequential, evidence: str) -> None:
    plain = Celm(evidence=evidence, warmup=2)  # type: ignore[arg-type]
    both = Celm(evidence=evidence, warmup=2, scores_from="head")  # type: ignore[arg-type]
    head = Celm(evidence="head", warmup=2)
    for rounds in (2, 3):
        weighted, delivered, trained = play(plain, module, rounds)
        reported, _, _ = play(both, module, rounds)
        state = head.init(context(module))
        for number, (start, models) in enumerate(zip(delivered, trained, strict=True), start=1):
            alone = head.compute_weights(state, context(module), a_round(number, start, models))
            state = alone.state
        assert reported.client_weights == weighted.client_weights
        assert reported.aggregation_weights == weighted.aggregation_weights
        assert reported.scores == alone.scores
        assert reported.evidence == alone.evidence
        assert reported.contributions == pytest.approx(alone.contributions)
        assert reported.contributions is not None
        assert reported.contributions["d"] == 0


def test_after_the_warm_up_an_idle_client_contributes_nothing(module: nn.Sequential) -> None:
    rule = Celm(evidence="calibrated", warmup=2, scores_from="head", idle_check="on-drift")
    result, delivered, trained = play(rule, module, rounds=2)
    lazy = {**trained[-1], "a": delivered[-1]}
    after = rule.compute_weights(result.state, context(module), a_round(3, delivered[-1], lazy))
    assert after.contributions is not None
    assert after.contributions["a"] == 0
    assert sum(after.contributions.values()) == pytest.approx(1)


class StopError(Exception):
    """Ends a run from its callback."""


@pytest.mark.parametrize("last_round", [2, 5])
def test_a_run_resumes_to_the_same_result(tmp_path: Path, last_round: int) -> None:
    rule = {"name": "celm", "evidence": "calibrated", "scores_from": "head", "warmup": 4, "agreement": 2.0}
    experiment = celm.Experiment(rule=rule, run={"rounds": 6})
    whole = celm.run(experiment, out=tmp_path / "whole")

    def stop(done: int, *_: object) -> None:
        if done == last_round:
            raise StopError

    with pytest.raises(StopError):
        celm.run(experiment, tmp_path / "cut", stop)
    resumed = celm.resume(tmp_path / "cut")
    assert resumed.weights == whole.weights
    assert resumed.evidence == whole.evidence
    assert resumed.rounds == whole.rounds
    assert resumed.metrics["per_class"] == whole.metrics["per_class"]


def test_the_default_split_is_paid_by_what_is_held(tmp_path: Path) -> None:
    """Clients 1 to 3 hold seven classes alike, client 4 alone three; client 0 holds noise."""
    rule = {"name": "celm", "evidence": "head", "warmup": 5}
    run = celm.run(celm.Experiment(rule=rule, run={"rounds": 6}), out=tmp_path / "run")
    expected = {"client-0": 0, "client-1": 0.7 / 3, "client-2": 0.7 / 3, "client-3": 0.7 / 3, "client-4": 0.3}
    assert run.weights == pytest.approx(expected, abs=0.01)
