"""Every rule and every objective in a whole federation: weights on the simplex, resume to the bit, observers, pins.

What whole federations must come out at is in test_known_equalities.py; formulas of single methods are in tests/rules
and tests/objectives. `pins.json` holds figures that `celm` itself printed: they say that a number changed, not that
it is right. Its `origin` names commit, command and processor. The tolerances hold on any processor: all figures but one
were the same with the kernels of six (AVX-512, AVX2 and SSE4.2 in MKL, MKL's compatible mode, PyTorch's AVX2 and
default kernels), and the tolerance of an accuracy is three test images. FedGELA is pinned at a small learning rate:
at the default one a rounding error grows within four rounds to a quarter of all test images.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

import celm
from celm.objectives import objectives
from celm.rules import rules

PINS = json.loads((Path(__file__).parent / "pins.json").read_text())
METHODS = [
    *rules.names(),
    *(f"fedavg+{name}" for name in objectives.names() if name != "plain"),
    "celm+fedrs",
]
COMPOSED = ["celm+scaffold", "cgsv+moon", "shapley+fedgela", "fedce+feddyn", "standalone+moon"]
"""One objective of each kind (client state, server hook, another architecture) with rules of each kind."""


def experiment(method: str) -> celm.Experiment:
    rule, _, objective = method.partition("+")
    return celm.Experiment(
        dataset="digits",
        split={"name": "pls", "clients": 4},
        rule=rule,
        objective=objective or "plain",
        train={"batch": 16, **({"lr": 0.001} if objective == "fedgela" else {})},
        probe={"steps": 20},
        run={"rounds": 4, "workers": 0, "local_heads": 2},
    )


class Stop(Exception):
    """Raised in the middle of a run, as a kill would end it."""


def stop_after(number: int):
    def watch(done: int, total: int, record: object) -> None:
        if done == number:
            raise Stop

    return watch


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, celm.Run]:
    """Each method's run, made once."""
    return {}


def run_once(
    method: str, finished: dict[str, celm.Run], tmp_path_factory: pytest.TempPathFactory
) -> celm.Run:
    if method not in finished:
        finished[method] = celm.run(experiment(method), out=tmp_path_factory.mktemp("whole") / "run")
    return finished[method]


@pytest.mark.parametrize("method", METHODS)
def test_figures_have_not_changed(method, finished, tmp_path_factory):
    run = run_once(method, finished, tmp_path_factory)
    pin, tolerance = PINS["runs"][method], PINS["tolerance"]
    # Accuracy on few validation samples moves in steps, and weights that are made of it with them.
    kind = "weights_from_validation" if run.experiment.run.validation else "weights"
    assert run.accuracy == pytest.approx(pin["accuracy"], abs=tolerance["accuracy"])
    assert run.weights == pytest.approx(pin["weights"], abs=tolerance[kind])


def test_every_method_is_pinned():
    assert set(PINS["runs"]) == set(METHODS)


@pytest.mark.parametrize("method", METHODS + COMPOSED)
def test_weights_of_every_round_are_on_the_simplex(method, finished, tmp_path_factory):
    for record in run_once(method, finished, tmp_path_factory).rounds:
        for name in ("weights", "client_weights", "scores"):
            if record[name] is not None:
                values = record[name].values()
                assert all(value >= 0 for value in values), (name, record)
                # Only CELM may find no evidence at all.
                without_evidence = name == "scores" and method.startswith("celm") and not any(values)
                assert math.isclose(sum(values), 1, abs_tol=1e-9) or without_evidence, (name, record)


@pytest.mark.parametrize("method", METHODS + COMPOSED)
def test_interrupted_and_resumed_run_is_the_same_to_the_bit(method, finished, tmp_path_factory, tmp_path):
    complete = run_once(method, finished, tmp_path_factory)
    for number in (1, 2, 3):
        folder = tmp_path / str(number)
        with pytest.raises(Stop):
            celm.run(experiment(method), out=folder, watch=stop_after(number))
        resumed = celm.resume(folder)
        for name in ("rounds.jsonl", "model.safetensors"):
            assert (folder / name).read_bytes() == (complete.folder / name).read_bytes(), (number, name)
        assert resumed.weights == complete.weights


@pytest.mark.parametrize("idle_check", ["on-drift", "every:1"])
@pytest.mark.parametrize("evidence", ["paper", "calibrated"])
def test_a_run_with_idle_checks_is_resumed_to_the_bit(evidence, idle_check, tmp_path):
    rule = {"name": "celm", "warmup": 2, "evidence": evidence, "idle_check": idle_check}
    checked = celm.Experiment.parse(
        {**experiment("celm").to_dict(), "model": {"name": "mlp", "widths": [8]}, "rule": rule}
    )
    complete = celm.run(checked, out=tmp_path / "complete")
    for number in (1, 2, 3):
        folder = tmp_path / str(number)
        with pytest.raises(Stop):
            celm.run(checked, out=folder, watch=stop_after(number))
        celm.resume(folder)
        for name in ("rounds.jsonl", "model.safetensors"):
            assert (folder / name).read_bytes() == (complete.folder / name).read_bytes(), (number, name)


OBSERVERS = [name for name in rules.names() if name not in ("standalone", "fedavg")]


def test_observers_watch_without_touching_the_trajectory_and_resume_to_the_bit(tmp_path):
    def watched(observe: list[str]) -> celm.Experiment:
        tables = experiment("fedavg").to_dict()
        tables["run"] |= {"validation": 0.1}
        return celm.Experiment.parse({**tables, "observe": [{"name": name} for name in observe]})

    alone = celm.run(watched([]), out=tmp_path / "alone")
    seen = celm.run(watched(OBSERVERS), out=tmp_path / "seen")
    models = [(run.folder / "model.safetensors").read_bytes() for run in (alone, seen)]
    assert models[0] == models[1]
    assert set(seen.metrics["observed"]) == set(OBSERVERS)
    for name, weights in seen.metrics["observed"].items():
        assert math.isclose(sum(weights.values()), 1, abs_tol=1e-9), name
    with pytest.raises(Stop):
        celm.run(watched(OBSERVERS), out=tmp_path / "stopped", watch=stop_after(2))
    celm.resume(tmp_path / "stopped")
    assert (tmp_path / "stopped/rounds.jsonl").read_bytes() == (seen.folder / "rounds.jsonl").read_bytes()


def test_what_one_observer_needs_holds_for_the_whole_run_and_is_said(tmp_path):
    tables = experiment("fedavg").to_dict()
    del tables["run"]["local_heads"]
    watched = celm.Experiment.parse({**tables, "observe": [{"name": "celm"}, {"name": "cffl"}]})
    run = celm.run(watched, out=tmp_path / "run")
    assert run.experiment.run.local_heads == 1  # CELM's warm-up of four rounds
    assert run.experiment.run.validation == 0.1


ROBUST = pytest.mark.parametrize("rule", ["celm", "fedavg", "fednova", "cgsv"])
ATTACK = {"name": "random_weights", "client": "client-1", "strength": 1000.0}


def largest_value(run: celm.Run) -> float:
    return max(float(tensor.abs().max()) for tensor in load_file(run.folder / "model.safetensors").values())


def with_filters(rule: str, **tables: object) -> celm.Experiment:
    return celm.Experiment.parse({**experiment(rule).to_dict(), **tables})


@ROBUST
def test_a_filter_and_an_aggregator_that_leave_all_as_it_is_change_nothing(rule, finished, tmp_path_factory):
    plain = run_once(rule, finished, tmp_path_factory)
    neutral = {
        "filter": {"name": "clip_norm", "norm": 1e6},
        "aggregator": {"name": "trimmed_mean", "trim": 0.0},
    }
    run = celm.run(with_filters(rule, **neutral), out=tmp_path_factory.mktemp("neutral") / "run")
    assert run.accuracy == pytest.approx(plain.accuracy, abs=1e-9)
    assert run.weights == pytest.approx(plain.weights, abs=1e-6)


@ROBUST
@pytest.mark.parametrize("filter_name", ["clip_norm", "krum"])
@pytest.mark.parametrize("aggregator", ["median", "trimmed_mean"])
def test_robust_aggregation_bounds_what_an_attacker_does_under_every_rule(
    rule, filter_name, aggregator, tmp_path
):
    robust = {
        "filter": {"name": filter_name},
        "aggregator": {"name": aggregator, **({"trim": 0.3} if aggregator == "trimmed_mean" else {})},
    }
    protected = celm.run(with_filters(rule, attack=ATTACK, **robust), out=tmp_path / "protected")
    assert largest_value(protected) < 2
    if filter_name == "krum":
        assert all("client-1" in record["excluded"] for record in protected.rounds)


@pytest.mark.parametrize(
    "rule", ["celm", "fedavg"]
)  # FedNova drops a client without steps, CGSV scales updates
def test_without_robust_aggregation_the_same_attacker_spoils_the_model(rule, tmp_path):
    assert largest_value(celm.run(with_filters(rule, attack=ATTACK), out=tmp_path / "run")) > 100
