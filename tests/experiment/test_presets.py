"""Presets fill in settings; what the experiment sets itself takes precedence."""

from __future__ import annotations

from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.experiment.config import Experiment
from celm.experiment.presets import with_preset

TRUST = {"evidence": "calibrated", "idle_check": "on-drift", "min_warmup": 5}


@pytest.mark.parametrize("tables", [{}, {"rule": "celm"}, {"rule": {"name": "celm"}}])
def test_trust_sets_evidence_idle_check_warm_up_and_filter(tables: dict[str, Any]) -> None:
    experiment = Experiment.parse(with_preset(tables, "trust"))
    assert experiment.rule.name == "celm"
    assert TRUST.items() <= experiment.rule.options.items()
    assert experiment.filter is not None
    assert experiment.filter.name == "clip_norm"


def test_with_other_rules_trust_sets_the_filter_only() -> None:
    assert with_preset({"rule": "fedavg"}, "trust") == {"rule": "fedavg", "filter": "clip_norm"}


def test_explicit_settings_take_precedence() -> None:
    tables = {"rule": {"name": "celm", "min_warmup": 2, "evidence": "paper"}, "filter": {"name": "krum"}}
    merged = with_preset(tables, "trust")
    assert merged["rule"] == {"name": "celm", "evidence": "paper", "idle_check": "on-drift", "min_warmup": 2}
    assert merged["filter"] == {"name": "krum"}


def test_without_a_preset_nothing_is_added() -> None:
    assert with_preset({"rule": "celm"}, None) == {"rule": "celm"}
    assert "filter" not in with_preset({}, "paper")


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(CelmError, match="'trust'"):
        with_preset({}, "thrust")
