"""The rule `celm` against Algorithm 1 of the paper, written in numpy for nets with known gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.randomness import make_generator
from celm.core.probe_schedules import sample_classes
from celm.rules.celm import Celm, CelmState
from celm.rules.celm_parts.round_probe import ProbeState
from celm.rules.messages import RoundData
from celm.rules.rule import ProbeSettings, ServerContext, WeightingResult
from support import rule_rounds

CLASSES, FEATURES, HIDDEN, SEED = 3, 4, 6, 11
STEPS, LR, L2 = 6, 0.05, 1e-2
NAMES = ("client-2", "client-7", "client-10")
State = dict[str, Tensor]
Array = np.ndarray


def architecture() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def model(seed: int, size: float = 1.0) -> State:
    draw = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(tensor.shape, generator=draw)
        for name, tensor in architecture().state_dict().items()
    }


def context(rounds: int = 100, clients: tuple[str, ...] = NAMES) -> ServerContext:
    return ServerContext(
        clients=clients,
        classes=CLASSES,
        input_shape=(FEATURES,),
        rounds=rounds,
        seed=SEED,
        module=architecture(),
        head=("2.weight", "2.bias"),
        probe=ProbeSettings(STEPS, LR, L2),
    )


def a_round(number: int, start: State, models: Mapping[str, State]) -> RoundData:
    return rule_rounds.a_round(start, models, number)


# --- Algorithm 1, independently -----------------------------------------------------------------------------


def lm_probe(state: State, X: Array) -> tuple[Array, Array]:
    W, b, V, c = (state[name].double().numpy() for name in ("0.weight", "0.bias", "2.weight", "2.bias"))
    X, u = X.copy(), np.empty(CLASSES)
    for k in range(CLASSES):
        x, first, second = X[k], np.zeros(FEATURES), np.zeros(FEATURES)
        for t in range(1, STEPS + 1):
            g = W.T @ ((1 - np.tanh(W @ x + b) ** 2) * V[k]) - 2 * L2 * x
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            x = x + LR * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        X[k], u[k] = x, (V @ np.tanh(W @ x + b) + c)[k]
    return u, X


def gaussian(name: str) -> Array:
    draw = make_generator(SEED, "probe", name)
    return torch.randn(CLASSES, FEATURES, generator=draw).double().numpy()


class Algorithm1:
    def __init__(self, beta: float, warmup: int) -> None:
        self.beta, self.warmup = beta, warmup
        self.c = np.full(len(NAMES), 1 / len(NAMES))
        self.X = {name: gaussian(name) for name in NAMES}
        self.X_g = gaussian("")
        self.q = np.zeros((len(NAMES), CLASSES))

    def round(self, t: int, w_g: State, w: Mapping[str, State]) -> None:
        if t > self.warmup:
            return
        u_g, self.X_g = lm_probe(w_g, self.X_g)
        self.b = u_g.mean()
        for i, name in enumerate(NAMES):
            u, self.X[name] = lm_probe(w[name], self.X[name])
            self.q[i] = np.maximum(0, u - self.b)
        r = self.q / (self.q.sum(axis=0) + 1e-12)
        hat = r.mean(axis=1)
        self.bar = hat / hat.sum()
        self.c = self.beta * self.c + (1 - self.beta) * self.bar


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_rounds_follow_algorithm_1(beta: float) -> None:
    """Warm starts over rounds, the bias from the round's starting model, smoothing, freezing, averaging."""
    rule, server, paper = Celm(warmup=3, beta=beta), context(), Algorithm1(beta, 3)
    state, start = rule.init(server), model(0, 0.3)
    for number in range(1, 6):
        models = {name: model(100 * number + i) for i, name in enumerate(NAMES)}
        round = a_round(number, start, models)
        result = rule.compute_weights(state, server, round)
        paper.round(number, start, models)
        assert list(result.aggregation_weights) == list(NAMES)
        assert list(result.aggregation_weights.values()) == pytest.approx(paper.c.tolist(), abs=1e-4)
        assert result.client_weights == pytest.approx(result.aggregation_weights)
        if number <= 3:
            assert list(result.scores.values()) == pytest.approx(paper.bar.tolist(), abs=1e-4)
            np.testing.assert_allclose(list(result.evidence.values()), paper.q, rtol=1e-3, atol=1e-3)
            assert result.diagnostics["bias"] == pytest.approx(paper.b, abs=1e-3)
            assert result.diagnostics["nonfinite"] == []
            for name in NAMES:
                np.testing.assert_allclose(result.probe_inputs[name].numpy(), paper.X[name], atol=1e-3)
            np.testing.assert_allclose(result.state.probe.global_inputs.numpy(), paper.X_g, atol=1e-3)
        merged = rule.aggregate(state, round, result)
        for name, tensor in merged.items():
            expected = sum(
                c * models[client][name].double() for c, client in zip(paper.c, NAMES, strict=True)
            )
            np.testing.assert_allclose(tensor.numpy(), expected.numpy(), atol=1e-3)
        state, start = result.state, merged


def test_after_the_warm_up_no_model_is_probed() -> None:
    class Untouchable(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("probed after warm-up")

    rule = Celm(warmup=1)
    state, first = run_rounds(rule, {1: {name: model(i) for i, name in enumerate(NAMES)}})
    server = ServerContext(NAMES, CLASSES, (FEATURES,), 100, SEED, Untouchable(), ())
    later = rule.compute_weights(
        state, server, a_round(2, model(9), {name: model(50 + i) for i, name in enumerate(NAMES)})
    )
    assert (later.scores, later.evidence, later.probe_inputs) == (None, None, None)
    assert later.aggregation_weights == pytest.approx(first.aggregation_weights)
    assert later.state.weights == state.weights


@pytest.mark.parametrize(("rounds", "warmup", "expected"), [(100, None, 5), (20, None, 1), (100, 7, 7)])
def test_warm_up_is_as_long_as_local_heads(rounds: int, warmup: int | None, expected: int) -> None:
    rule, server = Celm(warmup=warmup), context(rounds)
    assert rule.local_head_rounds(rounds) == expected
    models = {name: model(i) for i, name in enumerate(NAMES)}
    state = rule.init(server)
    assert rule.compute_weights(state, server, a_round(expected, model(9), models)).scores is not None
    assert rule.compute_weights(state, server, a_round(expected + 1, model(9), models)).scores is None


def run_rounds(
    rule: Celm, history: Mapping[int, Mapping[str, State]], clients: tuple[str, ...] = NAMES
) -> tuple[CelmState, WeightingResult[CelmState]]:
    server = context(clients=clients)
    state = rule.init(server)
    for number, models in history.items():
        result = rule.compute_weights(state, server, a_round(number, model(9, 0.1), models))
        state = result.state
    return state, result


def test_an_absent_client_keeps_its_weight_and_its_inputs() -> None:
    a, b, c = NAMES
    everybody = {name: model(i) for i, name in enumerate(NAMES)}
    before, _ = run_rounds(Celm(warmup=5), {1: everybody})
    after, result = run_rounds(Celm(warmup=5), {1: everybody, 2: {a: model(20), c: model(21)}})
    assert list(result.aggregation_weights) == [a, c]
    assert sum(result.aggregation_weights.values()) == pytest.approx(1)
    assert after.weights.by_client[b] == pytest.approx(before.weights.by_client[b])
    assert sum(after.weights.by_client.values()) == pytest.approx(1)
    assert torch.equal(after.probe.client_inputs[b], before.probe.client_inputs[b])
    assert b not in result.evidence
    # When it returns, its probe starts from its last final inputs.
    returned, _ = run_rounds(
        Celm(warmup=5), {1: everybody, 2: {a: model(20), c: model(21)}, 3: {b: model(22)}}
    )
    _, expected = lm_probe(model(22), before.probe.client_inputs[b].double().numpy())
    np.testing.assert_allclose(returned.probe.client_inputs[b].numpy(), expected, atol=1e-4)


def test_a_late_client_starts_at_the_mean_weight_and_from_its_own_noise() -> None:
    a, b, c = NAMES
    state, result = run_rounds(
        Celm(warmup=1), {1: {a: model(0), b: model(1)}, 2: {a: model(2), c: model(3)}}, (a, b)
    )
    first, _ = run_rounds(Celm(warmup=1), {1: {a: model(0), b: model(1)}}, (a, b))
    assert result.client_weights == pytest.approx(
        {a: first.weights.by_client[a] / 1.5, b: first.weights.by_client[b] / 1.5, c: 1 / 3}
    )
    _, scored = run_rounds(
        Celm(warmup=2), {1: {a: model(0), b: model(1)}, 2: {a: model(2), c: model(3)}}, (a, b)
    )
    _, expected = lm_probe(model(3), gaussian(c))
    np.testing.assert_allclose(scored.probe_inputs[c].numpy(), expected, atol=1e-4)
    assert set(state.weights.by_client) == set(NAMES)


@pytest.mark.parametrize("bad", [float("nan"), 3e38])
def test_a_nonfinite_client_is_named_and_does_not_change_the_others(bad: float) -> None:
    a, b, c = NAMES
    broken = {name: torch.full_like(tensor, bad) for name, tensor in model(1).items()}
    _, with_it = run_rounds(Celm(warmup=5, beta=0.5), {1: {a: model(0), b: broken, c: model(2)}})
    _, without = run_rounds(Celm(warmup=5, beta=0.5), {1: {a: model(0), c: model(2)}})
    assert with_it.diagnostics["nonfinite"] == [b]
    assert with_it.evidence[b] == [0.0] * CLASSES
    assert with_it.scores[b] == 0
    for name in (a, c):
        assert with_it.evidence[name] == pytest.approx(without.evidence[name], abs=1e-5)
        assert with_it.scores[name] == pytest.approx(without.scores[name], abs=1e-6)
    assert with_it.aggregation_weights[b] == pytest.approx(0.5 / 3)


def test_a_probe_that_diverged_starts_again_from_noise() -> None:
    a = NAMES[0]
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in model(1).items()}
    state, _ = run_rounds(Celm(warmup=5), {1: {a: broken}, 2: {a: model(4)}})
    _, expected = lm_probe(model(4), gaussian(a))
    np.testing.assert_allclose(state.probe.client_inputs[a].numpy(), expected, atol=1e-4)


def test_without_evidence_weights_do_not_change() -> None:
    rule, server = Celm(warmup=5), context()
    state, before = run_rounds(rule, {1: {name: model(i) for i, name in enumerate(NAMES)}})
    confident = model(9)
    confident["2.bias"] = torch.full((CLASSES,), 1e6)
    result = rule.compute_weights(state, server, a_round(2, confident, {name: model(30) for name in NAMES}))
    assert result.scores == dict.fromkeys(NAMES, 0.0)
    assert result.aggregation_weights == pytest.approx(before.aggregation_weights)


def test_a_round_without_evidence_does_not_end_the_warm_up() -> None:
    weak = {name: model(0, 0.01) for name in NAMES}
    rule, server = Celm(warmup=9, warmup_tolerance=0.5, min_warmup=1), context()
    without_evidence = rule.compute_weights(rule.init(server), server, a_round(1, model(9, 3.0), weak))
    assert not any(without_evidence.scores.values())
    assert without_evidence.state.warmup.ended_at is None
    with_evidence = rule.compute_weights(
        without_evidence.state, server, a_round(2, model(9, 0.01), {n: model(1) for n in NAMES})
    )
    assert with_evidence.state.warmup.ended_at == 2


def test_a_nonfinite_global_model_leaves_the_weights_and_has_no_bias() -> None:
    rule, server = Celm(warmup=5), context()
    state = rule.init(server)
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in model(1).items()}
    result = rule.compute_weights(state, server, a_round(1, broken, {name: model(30) for name in NAMES}))
    assert result.diagnostics == {"bias": None, "nonfinite": []}
    assert result.aggregation_weights == pytest.approx(dict.fromkeys(NAMES, 1 / 3))


def test_the_order_of_updates_does_not_matter_to_the_last_bit() -> None:
    models = {number: {name: model(10 * number + i) for i, name in enumerate(NAMES)} for number in (1, 2, 3)}
    reversed_models = {number: dict(reversed(of.items())) for number, of in models.items()}
    one, last = run_rounds(Celm(warmup=3), models)
    other, reversed_last = run_rounds(Celm(warmup=3), reversed_models)
    assert one.weights.by_client == other.weights.by_client
    assert last.aggregation_weights == reversed_last.aggregation_weights
    assert all(torch.equal(one.probe.client_inputs[name], other.probe.client_inputs[name]) for name in NAMES)


def test_updates_and_states_are_not_overwritten() -> None:
    rule, server = Celm(warmup=5), context()
    models = {name: model(i) for i, name in enumerate(NAMES)}
    start = model(9)
    original = {name: {key: tensor.clone() for key, tensor in m.items()} for name, m in models.items()}
    state, _ = run_rounds(rule, {1: models})
    original_inputs = {name: x.clone() for name, x in state.probe.client_inputs.items()}
    rule.compute_weights(state, server, a_round(2, start, models))
    assert all(torch.equal(models[n][key], original[n][key]) for n in NAMES for key in original[n])
    assert all(torch.equal(state.probe.client_inputs[name], original_inputs[name]) for name in NAMES)


def test_the_sole_holder_of_one_class_weighs_as_much_as_each_of_two_holders_of_two() -> None:
    """Use linear models whose logits rise fast for the classes they hold; only one client holds class 2.

    By shares of classes all three have a third. By shares of all evidence, or by classes held, it would be a fifth.
    """
    module = nn.Linear(FEATURES, CLASSES)
    server = ServerContext(NAMES, CLASSES, (FEATURES,), 100, SEED, module, (), ProbeSettings(50, 0.05, 1e-2))

    def holder_of(*classes: int) -> State:
        weight = torch.zeros(CLASSES, FEATURES)
        weight[list(classes)] = 2.0
        return {"weight": weight, "bias": torch.zeros(CLASSES)}

    start = {"weight": torch.zeros(CLASSES, FEATURES), "bias": torch.zeros(CLASSES)}
    models = dict(zip(NAMES, [holder_of(0, 1), holder_of(0, 1), holder_of(2)], strict=True))
    rule = Celm(warmup=1, beta=0.0)
    result = rule.compute_weights(rule.init(server), server, a_round(1, start, models))
    assert result.aggregation_weights[NAMES[2]] == pytest.approx(1 / 3)
    assert result.aggregation_weights[NAMES[0]] == pytest.approx(1 / 3, abs=0.06)
    by_all = replace(rule, share_by="all").compute_weights(
        rule.init(server), server, a_round(1, start, models)
    )
    assert by_all.aggregation_weights[NAMES[2]] == pytest.approx(1 / 5, abs=0.03)
    shown = {name: [entry > 0 for entry in row] for name, row in result.evidence.items()}
    assert shown == dict(zip(NAMES, [[True, True, False]] * 2 + [[False, False, True]], strict=True))


def test_a_sample_of_classes_is_probed_and_other_classes_keep_earlier_evidence() -> None:
    rule = Celm(warmup=9)
    server = replace(context(), probe=ProbeSettings(STEPS, LR, L2, classes=2))
    start, models = model(0, 0.3), {name: model(i) for i, name in enumerate(NAMES)}
    paper = Algorithm1(0.5, 9)
    paper.round(1, start, models)
    state, sampled = rule.init(server), set()
    for number in (1, 2):
        result = rule.compute_weights(
            replace(state, probe=ProbeState(evidence=state.probe.evidence)),
            server,
            a_round(number, start, models),
        )
        columns = result.diagnostics["probed"]
        assert columns == sample_classes(CLASSES, 2, SEED, number)
        sampled |= set(columns)
        u_g, _ = lm_probe(start, gaussian(""))
        u = np.stack([lm_probe(models[name], gaussian(name))[0] for name in NAMES])
        q = np.maximum(0, u[:, columns] - u_g[columns].mean())
        Q = np.array(list(result.evidence.values()))
        np.testing.assert_allclose(Q[:, columns], q, rtol=1e-3, atol=1e-3)
        assert (Q[:, [c for c in range(CLASSES) if c not in sampled]] == 0).all()
        r = q / (q.sum(axis=0) + 1e-12)
        np.testing.assert_allclose(list(result.scores.values()), r.mean(1) / r.mean(1).sum(), atol=1e-4)
        error = r.std(axis=1, ddof=1) * np.sqrt((1 - 2 / 3) / 2)
        np.testing.assert_allclose(list(result.diagnostics["standard_errors"].values()), error, atol=1e-3)
        for name in NAMES:
            unseen = [c for c in range(CLASSES) if c not in columns]
            np.testing.assert_allclose(
                result.probe_inputs[name].numpy()[unseen], gaussian(name)[unseen], rtol=1e-6
            )
        state = result.state
    assert sampled == set(range(CLASSES))
    assert (np.array(list(result.evidence.values())).sum(axis=0) > 0).any()


def test_with_a_tolerance_steps_are_doubled_and_the_score_error_is_reported() -> None:
    server = replace(context(), probe=ProbeSettings(60, LR, L2, tolerance=0.3))
    round = a_round(1, model(0, 0.3), {name: model(i) for i, name in enumerate(NAMES)})
    rule = Celm(warmup=3)
    rough = rule.compute_weights(rule.init(server), server, round)
    exact = rule.compute_weights(rule.init(server), replace(server, probe=ProbeSettings(60, LR, L2)), round)
    assert 0 < rough.diagnostics["score_error"] <= 0.3
    assert "score_error" not in exact.diagnostics
    assert rough.scores != exact.scores
    assert rough.scores == pytest.approx(exact.scores, abs=0.3)


def test_without_kept_inputs_every_round_starts_from_noise() -> None:
    server = replace(context(), probe=ProbeSettings(STEPS, LR, L2, keep_inputs=False))
    start, models = model(0, 0.3), {name: model(i) for i, name in enumerate(NAMES)}
    rule = Celm(warmup=9)
    state, scores = rule.init(server), []
    for number in (1, 2):
        result = rule.compute_weights(state, server, a_round(number, start, models))
        state = result.state
        assert (result.probe_inputs, state.probe) == (None, ProbeState())
        scores.append(result.scores)
    assert scores[0] == scores[1]
    cold = Celm(warmup=9, warm_start=False)
    other = cold.compute_weights(cold.init(context()), context(), a_round(2, start, models))
    assert scores[1] == other.scores


def test_calibrated_evidence_refuses_a_sample_of_classes() -> None:
    sampled = replace(context(), probe=ProbeSettings(classes=2))
    Celm().init(sampled)
    with pytest.raises(CelmError, match=r"probe\.classes"):
        Celm(evidence="calibrated").init(sampled)
