"""The preset `trust`, with which an audit begins unless it is told otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import celm
from auditing.conftest import SETTINGS, SHAPE, Uploads, audit_in_memory, random_state
from celm.base.errors import CelmError
from celm.models import build_model


def settings_of(**more: Any) -> tuple[str, bool]:
    settings = audit_in_memory(**more).document["settings"]
    return settings["evidence"], settings["movement"]


def test_the_default_is_trust_and_none_is_the_papers_rule() -> None:
    assert settings_of() == settings_of(preset="trust") == ("calibrated", True)
    assert settings_of(preset=None) == ("paper", True)


def test_given_settings_take_precedence() -> None:
    assert settings_of(evidence="paper") == ("paper", True)
    assert settings_of(movement=False) == ("calibrated", False)
    assert settings_of(preset=None, evidence="calibrated") == ("calibrated", True)


def test_by_default_a_copy_with_a_larger_head_is_flagged_and_scores_nothing() -> None:
    start = random_state(0)
    clients = {name: random_state(i) for i, name in enumerate("abc", start=1)}
    rider = {name: 10 * tensor if name.startswith("head.") else tensor for name, tensor in start.items()}
    trusted = celm.audit(start, {**clients, "rider": rider}, **SETTINGS)
    assert trusted.scores["rider"] == 0
    assert "did not train" in trusted.flags["rider"]
    printed = celm.audit(start, {**clients, "rider": rider}, preset=None, **SETTINGS)
    assert printed.scores["rider"] > 0
    assert printed.document["movement"] is None


def test_the_command_has_the_same_default(uploads: Uploads) -> None:
    def evidence(*more: str) -> str:
        done = uploads.audit(*more, "--format", "json")
        assert done.exit_code == 0, done.output
        return str(json.loads(done.stdout)["settings"]["evidence"])

    assert evidence() == "calibrated"
    assert evidence("--preset", "none") == "paper"
    assert evidence("--evidence", "paper") == "paper"
    assert evidence("--set", "evidence=paper") == "paper"


def test_an_unknown_preset_is_refused(uploads: Uploads, refused: Callable[..., str]) -> None:
    with pytest.raises(CelmError, match="unknown preset 'paper'"):
        audit_in_memory(preset="paper")
    assert "unknown preset 'trus'" in refused(*uploads.arguments("--preset", "trus"))


def sigmoid() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Sigmoid())


def audit_sigmoid(**more: Any) -> celm.Audit:
    clients: dict[str, nn.Module | dict[str, Tensor]] = {"a": sigmoid(), "b": sigmoid()}
    settings = {"input_shape": SHAPE, "classes": 3, "output": "sigmoid", "probe": {"steps": 2}}
    return celm.audit(sigmoid(), clients, **settings | more)


def test_classes_that_do_not_exclude_one_another_have_the_papers_evidence() -> None:
    """With a warning, unless the preset or the evidence was chosen."""
    with pytest.warns(UserWarning, match=r"sigmoid.*preset none"):
        audit = audit_sigmoid()
    assert audit.document["settings"]["evidence"] == "paper"
    assert audit_sigmoid(preset=None).document["settings"]["evidence"] == "paper"
    assert audit_sigmoid(evidence="paper").document["settings"]["evidence"] == "paper"
    with pytest.raises(CelmError, match="output=sigmoid") as refusal:
        audit_sigmoid(evidence="calibrated")
    assert "evidence=paper" in str(refusal.value.hint)


def mlp_with_sigmoid(input_shape: tuple[int, ...], classes: int, widths: list[int]) -> nn.Module:
    model = build_model("mlp", {"widths": widths}, input_shape, classes)
    model.register_forward_hook(lambda _, __, output: torch.sigmoid(output))
    return model


def test_the_command_warns_in_one_line(uploads: Uploads) -> None:
    options = (
        "--model",
        f"{__name__}:{mlp_with_sigmoid.__name__}",
        "--set",
        "output=sigmoid",
        "--format",
        "json",
    )
    done = uploads.audit(*options)
    assert json.loads(done.stdout)["settings"]["evidence"] == "paper"
    assert done.stderr.startswith("warning: preset trust")
    assert done.stderr.count("\n") == 1
    assert not uploads.audit(*options, "--preset", "none").stderr
