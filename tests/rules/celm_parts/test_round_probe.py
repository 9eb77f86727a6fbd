"""The probe of a round against a closed form.

Without penalty, a linear logit w·x + b has the gradient w everywhere, and each Adam step adds η sign(w).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from celm.base.randomness import make_generator
from celm.core.calibration import CalibratedLogits
from celm.core.probe_schedules import FixedSteps, StepDoubling
from celm.rules.celm_parts.class_sampler import AllClasses, ClassSampler, RotatingClasses
from celm.rules.celm_parts.round_probe import ProbeState, RoundProbe, RoundProbeResult, probe_global
from celm.rules.messages import RoundData
from celm.rules.rule import ProbeSettings, ServerContext
from support.rule_rounds import a_round

CLASSES, FEATURES, SEED, STEPS, LR = 3, 4, 11, 20, 0.05
CLIENTS = ["client-2", "client-10"]
CONTEXT = ServerContext(
    clients=tuple(CLIENTS),
    classes=CLASSES,
    input_shape=(FEATURES,),
    rounds=10,
    seed=SEED,
    module=nn.Linear(FEATURES, CLASSES),
    head=(),
    probe=ProbeSettings(STEPS, LR, l2=0.0),
)
State = dict[str, Tensor]


def model(seed: int) -> State:
    draw = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(CLASSES, FEATURES, generator=draw),
        "bias": torch.randn(CLASSES, generator=draw),
    }


GLOBAL, MODELS = model(0), {"client-10": model(1), "client-2": model(2)}


def round_data(number: int = 1) -> RoundData:
    return a_round(GLOBAL, MODELS, number)


def noise(name: str) -> Tensor:
    return torch.randn(CLASSES, FEATURES, generator=make_generator(SEED, "probe", name))


def final_inputs(state: State, start: Tensor) -> Tensor:
    return start + STEPS * LR * state["weight"].sign()


def final_logits(state: State, start: Tensor) -> Tensor:
    return (state["weight"] * final_inputs(state, start)).sum(dim=1) + state["bias"]


def first_logits(probe: RoundProbeResult) -> Tensor:
    return probe.client_logits[:, 0]


def round_probe(
    context: ServerContext = CONTEXT, sampler: ClassSampler | None = None, **settings: Any
) -> RoundProbe:
    parts: dict[str, Any] = {"schedule": FixedSteps(STEPS, LR), "transform": None, "score": first_logits}
    return RoundProbe(context, sampler or AllClasses(CLASSES), **{**parts, **settings})


def check(result: RoundProbeResult, start: Callable[[str], Tensor]) -> None:
    """Compare a probe of all classes with the closed form; `start` gives x(0) by name, "" for the global model."""
    assert (result.clients, result.classes) == (CLIENTS, list(range(CLASSES)))
    assert result.client_inputs is not None
    assert result.global_inputs is not None
    torch.testing.assert_close(result.global_logits, final_logits(GLOBAL, start("")))
    torch.testing.assert_close(result.global_inputs, final_inputs(GLOBAL, start("")))
    for i, name in enumerate(CLIENTS):
        torch.testing.assert_close(result.client_logits[i], final_logits(MODELS[name], start(name)))
        torch.testing.assert_close(result.client_inputs[i], final_inputs(MODELS[name], start(name)))


def test_the_first_probe_starts_from_noise_by_name() -> None:
    check(round_probe().run(ProbeState(), round_data()), noise)


def test_a_later_probe_starts_from_final_inputs_unless_they_are_not_finite() -> None:
    starts = {"": torch.rand(CLASSES, FEATURES), "client-2": torch.rand(CLASSES, FEATURES)}
    broken = torch.full((CLASSES, FEATURES), torch.inf)
    state = ProbeState(starts[""], {"client-2": starts["client-2"], "client-10": broken})
    check(round_probe().run(state, round_data()), lambda name: starts.get(name, noise(name)))
    check(round_probe(warm_start=False).run(state, round_data()), noise)


def test_a_sample_of_classes_is_probed_and_the_others_keep_inputs_and_evidence() -> None:
    sampler = RotatingClasses(CLASSES, 2, SEED)
    probe, classes = round_probe(sampler=sampler), sampler.classes(1)
    other = ({0, 1, 2} - set(classes)).pop()
    result = probe.run(ProbeState(), round_data())
    assert result.classes == classes
    torch.testing.assert_close(result.global_logits, final_logits(GLOBAL, noise(""))[classes])
    Q = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    earlier = {"client-2": torch.tensor([7.0, 8.0, 9.0], dtype=torch.float64)}
    state, evidence = probe.update(ProbeState(evidence=earlier), result, Q)
    assert evidence["client-2"][classes].tolist() == [1, 2]
    assert evidence["client-10"][classes].tolist() == [3, 4]
    assert (evidence["client-2"][other], evidence["client-10"][other]) == (earlier["client-2"][other], 0)
    assert state.evidence == evidence
    inputs = state.client_inputs["client-10"]
    torch.testing.assert_close(
        inputs[classes], final_inputs(MODELS["client-10"], noise("client-10"))[classes]
    )
    assert torch.equal(inputs[other], noise("client-10")[other])


def test_the_state_holds_final_inputs_also_of_absent_clients_but_no_evidence_of_all_classes() -> None:
    absent = torch.rand(CLASSES, FEATURES)
    result = round_probe().run(ProbeState(), round_data())
    Q = torch.rand(2, CLASSES, dtype=torch.float64)
    state, evidence = round_probe().update(ProbeState(client_inputs={"client-7": absent}), result, Q)
    assert result.client_inputs is not None
    assert state.evidence == {}
    assert torch.equal(torch.stack([evidence[name] for name in CLIENTS]), Q)
    assert state.client_inputs["client-7"] is absent
    assert torch.equal(state.client_inputs["client-10"], result.client_inputs[1])
    assert state.global_inputs is result.global_inputs


def test_without_kept_inputs_the_state_stays_empty() -> None:
    probe = round_probe(replace(CONTEXT, probe=replace(CONTEXT.probe, keep_inputs=False)))
    result = probe.run(ProbeState(), round_data())
    assert (result.client_inputs, result.global_inputs) == (None, None)
    torch.testing.assert_close(result.global_logits, final_logits(GLOBAL, noise("")))
    state, _ = probe.update(ProbeState(), result, torch.zeros(2, CLASSES))
    assert state == ProbeState()


def test_measurements_are_those_of_the_clients() -> None:
    result = round_probe(transform=CalibratedLogits(SEED)).run(ProbeState(), round_data())
    x = torch.randn(512, FEATURES, generator=make_generator(SEED, "calibration"))
    for i, name in enumerate(CLIENTS):
        logits = x @ MODELS[name]["weight"].T + MODELS[name]["bias"]
        torch.testing.assert_close(result.measurements.mean[i], logits.mean(0), rtol=1e-4, atol=1e-5)
    assert len(result.measurements.rms_std) == len(CLIENTS)


def test_the_schedule_judges_results_by_their_scores() -> None:
    """All step counts walk the same way on linear logits, so the first doubling changes nothing."""
    result = round_probe(schedule=StepDoubling(80, LR, tolerance=0.01)).run(ProbeState(), round_data())
    assert result.score_error == pytest.approx(0, abs=1e-3)
    assert round_probe().run(ProbeState(), round_data()).score_error is None


def test_the_global_model_is_probed_alone_from_its_warm_start() -> None:
    start = torch.rand(CLASSES, FEATURES)
    context = replace(CONTEXT, probe=replace(CONTEXT.probe, keep_inputs=False))
    torch.testing.assert_close(probe_global(context, GLOBAL, start), final_inputs(GLOBAL, start))
    torch.testing.assert_close(probe_global(context, GLOBAL, None), final_inputs(GLOBAL, noise("")))
