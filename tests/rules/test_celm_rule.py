"""CELM's rule against Algorithm 1 of the paper, written out in numpy for nets whose gradients are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from celm.base.randomness import generator
from celm.method.cheaper import sampled_classes
from celm.rules.celm import Celm, Evidence
from celm.rules.exchange import Round
from celm.rules.rule import Facts, ProbeSettings, Weighing
from rules import rounds

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


def facts(rounds: int = 100, clients: tuple[str, ...] = NAMES) -> Facts:
    return Facts(
        clients=clients,
        classes=CLASSES,
        input_shape=(FEATURES,),
        rounds=rounds,
        seed=SEED,
        module=architecture(),
        head=("2.weight", "2.bias"),
        probe=ProbeSettings(STEPS, LR, L2),
    )


def a_round(number: int, start: State, models: Mapping[str, State]) -> Round:
    return rounds.a_round(start, models, number)


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
    draw = generator(SEED, "probe", name)
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
    rule, federation, paper = Celm(warmup=3, beta=beta), facts(), Algorithm1(beta, 3)
    state, start = rule.init(federation), model(0, 0.3)
    for number in range(1, 6):
        models = {name: model(100 * number + i) for i, name in enumerate(NAMES)}
        round = a_round(number, start, models)
        weighing = rule.weigh(state, federation, round)
        paper.round(number, start, models)
        assert list(weighing.weights) == list(NAMES)
        assert list(weighing.weights.values()) == pytest.approx(paper.c.tolist(), abs=1e-4)
        assert weighing.standing == pytest.approx(weighing.weights)
        if number <= 3:
            assert list(weighing.scores.values()) == pytest.approx(paper.bar.tolist(), abs=1e-4)
            np.testing.assert_allclose(list(weighing.evidence.values()), paper.q, rtol=1e-3, atol=1e-3)
            assert weighing.diagnostics["bias"] == pytest.approx(paper.b, abs=1e-3)
            assert weighing.diagnostics["unreadable"] == []
            for name in NAMES:
                np.testing.assert_allclose(weighing.inputs[name].numpy(), paper.X[name], atol=1e-3)
            np.testing.assert_allclose(weighing.state.global_inputs.numpy(), paper.X_g, atol=1e-3)
        merged = rule.merge(state, round, weighing)
        for name, tensor in merged.items():
            expected = sum(
                c * models[client][name].double() for c, client in zip(paper.c, NAMES, strict=True)
            )
            np.testing.assert_allclose(tensor.numpy(), expected.numpy(), atol=1e-3)
        state, start = weighing.state, merged


def test_after_warm_up_nothing_is_probed() -> None:
    class Untouchable(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("probed after warm-up")

    rule = Celm(warmup=1)
    state, first = play(rule, {1: {name: model(i) for i, name in enumerate(NAMES)}})
    federation = Facts(NAMES, CLASSES, (FEATURES,), 100, SEED, Untouchable(), ())
    later = rule.weigh(
        state, federation, a_round(2, model(9), {name: model(50 + i) for i, name in enumerate(NAMES)})
    )
    assert (later.scores, later.evidence, later.inputs) == (None, None, None)
    assert later.weights == pytest.approx(first.weights)
    assert later.state.weights == state.weights


@pytest.mark.parametrize(("rounds", "warmup", "expected"), [(100, None, 5), (20, None, 1), (100, 7, 7)])
def test_warm_up_is_as_long_as_local_heads(rounds: int, warmup: int | None, expected: int) -> None:
    rule, federation = Celm(warmup=warmup), facts(rounds)
    assert rule.local_heads(rounds) == expected
    models = {name: model(i) for i, name in enumerate(NAMES)}
    state = rule.init(federation)
    assert rule.weigh(state, federation, a_round(expected, model(9), models)).scores is not None
    assert rule.weigh(state, federation, a_round(expected + 1, model(9), models)).scores is None


def play(
    rule: Celm, history: Mapping[int, Mapping[str, State]], clients: tuple[str, ...] = NAMES
) -> tuple[Evidence, Weighing[Evidence]]:
    federation = facts(clients=clients)
    state = rule.init(federation)
    for number, models in history.items():
        weighing = rule.weigh(state, federation, a_round(number, model(9, 0.1), models))
        state = weighing.state
    return state, weighing


def test_an_absent_client_keeps_its_weight_and_its_inputs() -> None:
    a, b, c = NAMES
    everybody = {name: model(i) for i, name in enumerate(NAMES)}
    before, _ = play(Celm(warmup=5), {1: everybody})
    after, weighing = play(Celm(warmup=5), {1: everybody, 2: {a: model(20), c: model(21)}})
    assert list(weighing.weights) == [a, c]
    assert sum(weighing.weights.values()) == pytest.approx(1)
    assert after.weights.of[b] == pytest.approx(before.weights.of[b])
    assert sum(after.weights.of.values()) == pytest.approx(1)
    assert torch.equal(after.inputs[b], before.inputs[b])
    assert b not in weighing.evidence
    # Back again, its probe goes on from where it ended.
    returned, _ = play(Celm(warmup=5), {1: everybody, 2: {a: model(20), c: model(21)}, 3: {b: model(22)}})
    _, expected = lm_probe(model(22), before.inputs[b].double().numpy())
    np.testing.assert_allclose(returned.inputs[b].numpy(), expected, atol=1e-4)


def test_a_client_first_seen_later_starts_at_the_mean_from_noise_of_its_own() -> None:
    a, b, c = NAMES
    state, weighing = play(
        Celm(warmup=1), {1: {a: model(0), b: model(1)}, 2: {a: model(2), c: model(3)}}, (a, b)
    )
    first, _ = play(Celm(warmup=1), {1: {a: model(0), b: model(1)}}, (a, b))
    assert weighing.standing == pytest.approx(
        {a: first.weights.of[a] / 1.5, b: first.weights.of[b] / 1.5, c: 1 / 3}
    )
    _, scored = play(Celm(warmup=2), {1: {a: model(0), b: model(1)}, 2: {a: model(2), c: model(3)}}, (a, b))
    _, expected = lm_probe(model(3), gaussian(c))
    np.testing.assert_allclose(scored.inputs[c].numpy(), expected, atol=1e-4)
    assert set(state.weights.of) == set(NAMES)


@pytest.mark.parametrize("bad", [float("nan"), 3e38])
def test_a_client_that_cannot_be_read_is_named_and_spoils_nobody(bad: float) -> None:
    a, b, c = NAMES
    broken = {name: torch.full_like(tensor, bad) for name, tensor in model(1).items()}
    _, with_it = play(Celm(warmup=5, beta=0.5), {1: {a: model(0), b: broken, c: model(2)}})
    _, without = play(Celm(warmup=5, beta=0.5), {1: {a: model(0), c: model(2)}})
    assert with_it.diagnostics["unreadable"] == [b]
    assert with_it.evidence[b] == [0.0] * CLASSES
    assert with_it.scores[b] == 0
    for name in (a, c):
        assert with_it.evidence[name] == pytest.approx(without.evidence[name], abs=1e-5)
        assert with_it.scores[name] == pytest.approx(without.scores[name], abs=1e-6)
    assert with_it.weights[b] == pytest.approx(0.5 / 3)


def test_a_probe_that_ran_off_to_infinity_begins_anew_from_noise() -> None:
    a = NAMES[0]
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in model(1).items()}
    state, _ = play(Celm(warmup=5), {1: {a: broken}, 2: {a: model(4)}})
    _, expected = lm_probe(model(4), gaussian(a))
    np.testing.assert_allclose(state.inputs[a].numpy(), expected, atol=1e-4)


def test_without_evidence_the_weights_stay() -> None:
    rule, federation = Celm(warmup=5), facts()
    state, before = play(rule, {1: {name: model(i) for i, name in enumerate(NAMES)}})
    confident = model(9)
    confident["2.bias"] = torch.full((CLASSES,), 1e6)
    weighing = rule.weigh(state, federation, a_round(2, confident, {name: model(30) for name in NAMES}))
    assert weighing.scores == dict.fromkeys(NAMES, 0.0)
    assert weighing.weights == pytest.approx(before.weights)


def test_without_evidence_nothing_has_settled() -> None:
    weak = {name: model(0, 0.01) for name in NAMES}
    rule, federation = Celm(warmup=9, settle=0.5, least=1), facts()
    silent = rule.weigh(rule.init(federation), federation, a_round(1, model(9, 3.0), weak))
    assert not any(silent.scores.values())
    assert silent.state.ended is None
    heard = rule.weigh(silent.state, federation, a_round(2, model(9, 0.01), {n: model(1) for n in NAMES}))
    assert heard.state.ended == 2


def test_a_global_model_that_cannot_be_read_leaves_the_weights_and_no_bias() -> None:
    rule, federation = Celm(warmup=5), facts()
    state = rule.init(federation)
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in model(1).items()}
    weighing = rule.weigh(state, federation, a_round(1, broken, {name: model(30) for name in NAMES}))
    assert weighing.diagnostics == {"bias": None, "unreadable": []}
    assert weighing.weights == pytest.approx(dict.fromkeys(NAMES, 1 / 3))


def test_the_order_of_updates_does_not_matter_to_the_last_bit() -> None:
    models = {number: {name: model(10 * number + i) for i, name in enumerate(NAMES)} for number in (1, 2, 3)}
    turned = {number: dict(reversed(of.items())) for number, of in models.items()}
    one, last = play(Celm(warmup=3), models)
    other, turned_last = play(Celm(warmup=3), turned)
    assert one.weights.of == other.weights.of
    assert last.weights == turned_last.weights
    assert all(torch.equal(one.inputs[name], other.inputs[name]) for name in NAMES)


def test_what_was_sent_and_remembered_is_not_written_over() -> None:
    rule, federation = Celm(warmup=5), facts()
    models = {name: model(i) for i, name in enumerate(NAMES)}
    start = model(9)
    kept = {name: {key: tensor.clone() for key, tensor in m.items()} for name, m in models.items()}
    state, _ = play(rule, {1: models})
    remembered = {name: x.clone() for name, x in state.inputs.items()}
    rule.weigh(state, federation, a_round(2, start, models))
    assert all(torch.equal(models[n][key], kept[n][key]) for n in NAMES for key in kept[n])
    assert all(torch.equal(state.inputs[name], remembered[name]) for name in NAMES)


def test_a_sole_holder_of_one_class_weighs_as_much_as_two_who_share_two() -> None:
    """Linear models whose logits for the classes they know rise fast: class 2 is known to one client only.

    By shares of classes all three have a third; by shares of all evidence, or by classes held, it would be a fifth.
    """
    module = nn.Linear(FEATURES, CLASSES)
    federation = Facts(NAMES, CLASSES, (FEATURES,), 100, SEED, module, (), ProbeSettings(50, 0.05, 1e-2))

    def knowing(*known: int) -> State:
        weight = torch.zeros(CLASSES, FEATURES)
        weight[list(known)] = 2.0
        return {"weight": weight, "bias": torch.zeros(CLASSES)}

    start = {"weight": torch.zeros(CLASSES, FEATURES), "bias": torch.zeros(CLASSES)}
    models = dict(zip(NAMES, [knowing(0, 1), knowing(0, 1), knowing(2)], strict=True))
    rule = Celm(warmup=1, beta=0.0)
    weighing = rule.weigh(rule.init(federation), federation, a_round(1, start, models))
    assert weighing.weights[NAMES[2]] == pytest.approx(1 / 3)
    assert weighing.weights[NAMES[0]] == pytest.approx(1 / 3, abs=0.06)
    by_all = replace(rule, share_by="all").weigh(rule.init(federation), federation, a_round(1, start, models))
    assert by_all.weights[NAMES[2]] == pytest.approx(1 / 5, abs=0.03)
    shown = {name: [entry > 0 for entry in row] for name, row in weighing.evidence.items()}
    assert shown == dict(zip(NAMES, [[True, True, False]] * 2 + [[False, False, True]], strict=True))


def test_a_sample_of_classes_is_the_same_probe_of_those_classes_and_keeps_what_was_seen_before() -> None:
    rule = Celm(warmup=9)
    federation = replace(facts(), probe=ProbeSettings(STEPS, LR, L2, classes=2))
    start, models = model(0, 0.3), {name: model(i) for i, name in enumerate(NAMES)}
    paper = Algorithm1(0.5, 9)
    paper.round(1, start, models)
    state, seen = rule.init(federation), set()
    for number in (1, 2):
        weighing = rule.weigh(
            replace(state, inputs={}, global_inputs=None), federation, a_round(number, start, models)
        )
        columns = weighing.diagnostics["probed"]
        assert columns == sampled_classes(CLASSES, 2, SEED, number)
        seen |= set(columns)
        u_g, _ = lm_probe(start, gaussian(""))
        u = np.stack([lm_probe(models[name], gaussian(name))[0] for name in NAMES])
        q = np.maximum(0, u[:, columns] - u_g[columns].mean())
        found = np.array(list(weighing.evidence.values()))
        np.testing.assert_allclose(found[:, columns], q, rtol=1e-3, atol=1e-3)
        assert (found[:, [c for c in range(CLASSES) if c not in seen]] == 0).all()
        r = q / (q.sum(axis=0) + 1e-12)
        np.testing.assert_allclose(list(weighing.scores.values()), r.mean(1) / r.mean(1).sum(), atol=1e-4)
        error = r.std(axis=1, ddof=1) * np.sqrt((1 - 2 / 3) / 2)
        np.testing.assert_allclose(list(weighing.diagnostics["standard_errors"].values()), error, atol=1e-3)
        for name in NAMES:
            unseen = [c for c in range(CLASSES) if c not in columns]
            np.testing.assert_allclose(
                weighing.inputs[name].numpy()[unseen], gaussian(name)[unseen], rtol=1e-6
            )
        state = weighing.state
    assert seen == set(range(CLASSES))
    assert (np.array(list(weighing.evidence.values())).sum(axis=0) > 0).any()


def test_a_tolerance_is_handed_to_the_probe_and_what_it_took_is_told() -> None:
    federation = replace(facts(), probe=ProbeSettings(60, LR, L2, tolerance=0.3))
    round = a_round(1, model(0, 0.3), {name: model(i) for i, name in enumerate(NAMES)})
    rule = Celm(warmup=3)
    rough = rule.weigh(rule.init(federation), federation, round)
    exact = rule.weigh(rule.init(federation), replace(federation, probe=ProbeSettings(60, LR, L2)), round)
    assert 0 < rough.diagnostics["score_error"] <= 0.3
    assert "score_error" not in exact.diagnostics
    assert rough.scores != exact.scores
    assert rough.scores == pytest.approx(exact.scores, abs=0.3)


def test_without_keeping_inputs_every_round_begins_from_noise() -> None:
    federation = replace(facts(), probe=ProbeSettings(STEPS, LR, L2, keep=False))
    start, models = model(0, 0.3), {name: model(i) for i, name in enumerate(NAMES)}
    rule = Celm(warmup=9)
    state, found = rule.init(federation), []
    for number in (1, 2):
        weighing = rule.weigh(state, federation, a_round(number, start, models))
        state = weighing.state
        assert (weighing.inputs, state.inputs, state.global_inputs) == (None, {}, None)
        found.append(weighing.scores)
    assert found[0] == found[1]
    cold = Celm(warmup=9, warm_start=False)
    other = cold.weigh(cold.init(facts()), facts(), a_round(2, start, models))
    assert found[1] == other.scores
