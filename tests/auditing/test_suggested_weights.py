"""The weights that an audit suggests: those of the rule `celm` in its warm-up, also for clients that are absent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import celm
from celm.auditing.audit import SuggestedWeights
from celm.auditing.settings import AuditSettings
from celm.rules.celm import Celm
from celm.rules.messages import ClientUpdate, RoundData, ServerMessage
from celm.rules.rule import ProbeSettings, ServerContext

State = dict[str, Tensor]
SHAPE, CLASSES, CLIENTS = (4,), 3, ("a", "b", "c")
PROBE: dict[str, Any] = {"steps": 400, "lr": 0.05, "l2": 0.5}
"""The objective of a linear model is concave: this many steps reach its maximum from any start."""
HEAD = ("weight", "bias")
ABSENT = {(2, "b")}


def linear_model() -> nn.Module:
    return nn.Linear(SHAPE[0], CLASSES)


def make_rounds(count: int = 3) -> list[tuple[State, dict[str, State]]]:
    """Return the global model and the uploads of each round; every client moves a row of its own most."""
    generator = torch.Generator().manual_seed(1)
    shapes = {name: tensor.shape for name, tensor in linear_model().state_dict().items()}

    def noise(scale: float) -> State:
        return {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    def add(state: State, change: State) -> State:
        return {name: tensor + change[name] for name, tensor in state.items()}

    rounds = []
    global_model = noise(1.0)
    for _ in range(count):
        uploads = {}
        for row, name in enumerate(CLIENTS):
            change = noise(0.3)
            change["weight"][row] *= 4
            uploads[name] = add(global_model, change)
        rounds.append((global_model, uploads))
        global_model = {
            name: torch.stack([upload[name] for upload in uploads.values()]).mean(0) for name in shapes
        }
    return rounds


def weights_of_the_rule(evidence: str) -> list[Mapping[str, float]]:
    rule = Celm(evidence=evidence, warmup=10)  # type: ignore[arg-type]
    context = ServerContext(CLIENTS, CLASSES, SHAPE, 10, 42, linear_model(), HEAD, ProbeSettings(**PROBE))
    state = rule.init(context)
    weights = []
    for number, (global_model, uploads) in enumerate(make_rounds(), start=1):
        usable = {name: upload for name, upload in uploads.items() if (number, name) not in ABSENT}
        updates = {name: ClientUpdate(upload, 1, 1) for name, upload in usable.items()}
        messages = {name: ServerMessage(global_model) for name in CLIENTS}
        round = RoundData(number, global_model, messages, updates)
        result = rule.compute_weights(state, context, round)
        state = result.state
        weights.append(result.client_weights)
    return weights


def audit_rounds(folder: Path, evidence: str, absent_upload: bytes | None) -> celm.Audit:
    for number, (global_model, uploads) in enumerate(make_rounds(), start=1):
        round_folder = folder / f"round-{number}"
        round_folder.mkdir()
        save_file(global_model, round_folder / "global.safetensors")
        for name, state in uploads.items():
            path = round_folder / f"{name}.safetensors"
            if (number, name) not in ABSENT:
                save_file(state, path)
            elif absent_upload is not None:
                path.write_bytes(absent_upload)
    return celm.audit(
        None,
        folder,
        model=linear_model(),
        input_shape=SHAPE,
        classes=CLASSES,
        evidence=evidence,
        num_starts=1,
        probe=PROBE,
    )


@pytest.mark.parametrize("absent_upload", [None, b"nonsense"], ids=["no file", "unusable file"])
@pytest.mark.parametrize("evidence", ["paper", "calibrated", "head"])
def test_an_audit_suggests_the_weights_of_the_rule(
    tmp_path: Path, evidence: str, absent_upload: bytes | None
) -> None:
    """The same rounds through the rule and through the audit; client b is absent in round 2."""
    audit = audit_rounds(tmp_path, evidence, absent_upload)
    expected = weights_of_the_rule(evidence)
    assert len({round(weight, 3) for weight in expected[-1].values()}) == len(CLIENTS)
    for record, weights in zip(audit.rounds, expected, strict=True):
        assert record["client_weights"] == pytest.approx(weights, abs=1e-4)
    assert audit.weights == pytest.approx(expected[-1], abs=1e-4)


def test_weights_follow_from_the_scores_by_hand(tmp_path: Path) -> None:
    """First scores count in full, β = 1/2, and client b answered in 1 of 2, then in 2 of 3 rounds."""
    audit = audit_rounds(tmp_path, "calibrated", None)
    first, second, third = (record["scores"] for record in audit.rounds)
    present = first["a"] + first["c"]
    after_second = {
        "a": 0.5 * first["a"] + 0.5 * present * second["a"],
        "b": first["b"],
        "c": 0.5 * first["c"] + 0.5 * present * second["c"],
    }
    after_third = {name: 0.5 * after_second[name] + 0.5 * third[name] for name in CLIENTS}

    def scaled(weights: Mapping[str, float], rate: float) -> dict[str, float]:
        total = weights["a"] + rate * weights["b"] + weights["c"]
        return {name: (rate if name == "b" else 1) * weight / total for name, weight in weights.items()}

    assert first["b"] > 0.1
    assert audit.rounds[0]["client_weights"] == pytest.approx(first)
    assert audit.rounds[1]["client_weights"] == pytest.approx(scaled(after_second, 1 / 2))
    assert audit.rounds[2]["client_weights"] == pytest.approx(scaled(after_third, 2 / 3))


def initial(evidence: str = "calibrated") -> SuggestedWeights:
    return SuggestedWeights.initial(AuditSettings.parse({"classes": ["0"], "evidence": evidence}))


def test_a_client_that_joins_later_was_not_absent_before() -> None:
    weights = initial().update({"a": 0.5, "b": 0.5}, "ab").update({"a": 0.2, "b": 0.2, "c": 0.6}, "abc")
    assert weights.attendance is not None
    assert weights.attendance.requests == weights.attendance.replies == {"a": 2, "b": 2, "c": 1}


def test_a_client_counts_as_asked_from_its_first_file_on() -> None:
    weights = initial().update({"a": 1.0}, "ab").update({"a": 0.5, "b": 0.5}, "ab")
    assert weights.attendance is not None
    assert weights.attendance.requests == {"a": 2, "b": 2}
    assert weights.attendance.replies == {"a": 2, "b": 1}
    assert weights.by_client["b"] < weights.unscaled.by_client["b"]


def test_a_round_without_evidence_changes_neither_weights_nor_attendance() -> None:
    before = initial().update({"a": 0.7, "b": 0.3}, "ab")
    after = before.update({"a": 0.0}, "ab")
    assert after.by_client == before.by_client
    assert after.attendance == before.attendance


def test_with_the_papers_evidence_an_absent_client_keeps_its_weight() -> None:
    weights = initial("paper").update({"a": 0.5, "b": 0.5}, "ab").update({"a": 1.0}, "a")
    assert weights.by_client == pytest.approx({"a": 0.5, "b": 0.5})


def audit_single_round(preset: str | None, uploads: Mapping[str, State]) -> celm.Audit:
    return celm.audit(
        make_rounds(1)[0][0],
        uploads,
        model=linear_model(),
        input_shape=SHAPE,
        classes=CLASSES,
        preset=preset,
        probe={"steps": 20},
    )


@pytest.mark.parametrize("preset", [None, "trust"])
def test_of_a_single_round_the_weights_are_the_scores(preset: str | None) -> None:
    audit = audit_single_round(preset, make_rounds(1)[0][1])
    assert not audit.flags
    assert audit.weights == pytest.approx(audit.scores)
    assert len({round(score, 3) for score in audit.scores.values()}) == len(CLIENTS)


@pytest.mark.parametrize("preset", [None, "trust"])
def test_a_flagged_client_gets_no_weight_and_the_others_share_it(preset: str | None) -> None:
    """With the paper's evidence the copy has a score, and had 13 % of the weight."""
    global_model, uploads = make_rounds(1)[0]
    audit = audit_single_round(preset, {**uploads, "copy": global_model})
    assert list(audit.flags) == ["copy"]
    assert audit.weights["copy"] == 0
    trained = sum(audit.scores[name] for name in CLIENTS)
    expected = {name: audit.scores[name] / trained for name in CLIENTS}
    assert {name: audit.weights[name] for name in CLIENTS} == pytest.approx(expected)
    assert audit.rounds[0]["client_weights"] == audit.weights
    assert (audit.scores["copy"] > 0) == (preset is None)


def test_if_all_clients_are_flagged_no_weight_is_suggested() -> None:
    global_model = make_rounds(1)[0][0]
    audit = audit_single_round(None, {"a": global_model, "b": global_model})
    assert audit.flags.keys() == audit.weights.keys() == {"a", "b"}
    assert set(audit.weights.values()) == {0.0}


def test_a_flag_counts_until_the_client_is_scored_without_it() -> None:
    first = initial("paper").update({"a": 0.5, "b": 0.5}, "ab", flagged=["b"])
    assert first.by_client == {"a": 1.0, "b": 0.0}
    absent = first.update({"a": 1.0}, "a")
    assert absent.by_client == {"a": 1.0, "b": 0.0}
    again = absent.update({"a": 0.5, "b": 0.5}, "ab")
    assert again.by_client == pytest.approx({"a": 0.5, "b": 0.5})


def test_without_any_evidence_scores_are_zero_and_a_note_says_what_that_means() -> None:
    """Each model is the global model, moved so that no class can be driven above the global level."""
    global_model, _ = make_rounds(1)[0]
    lowered = {
        name: {**global_model, "bias": global_model["bias"] - 1e4 - 1e3 * i} for i, name in enumerate("ab")
    }
    audit = audit_single_round(None, lowered)
    assert audit.scores == {"a": 0.0, "b": 0.0}
    assert audit.weights == {"a": 0.5, "b": 0.5}
    assert "no client has evidence" in audit.to_html()
    assert "no client has evidence" not in audit_single_round(None, make_rounds(1)[0][1]).to_html()
