"""The analysis of probes: numbers by hand, and properties of any logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from celm.auditing.analysis import DuplicateUpload, Findings, analyse
from celm.auditing.settings import AuditSettings
from celm.core.class_holders import ClassHolders, class_holders
from celm.core.evidence import evidence, scores, shares


def logits(rows: dict[str, list[float]], starts: int = 5, spread: float = 0.1) -> dict[str, Tensor]:
    """Return the same numbers for every start, with a symmetric spread."""
    steps = spread * (torch.arange(starts) - (starts - 1) / 2)
    return {name: torch.tensor(row) + steps[:, None] for name, row in rows.items()}


def judged(
    clients: dict[str, list[float]],
    start: list[float],
    starts: int = 5,
    copies: dict[str, DuplicateUpload] | None = None,
    **more: Any,
) -> Findings:
    audit_settings = AuditSettings.parse(
        {"classes": [str(k) for k in range(len(start))], "num_starts": starts, **more}
    )
    # The global model has the opposite spread, so that differences vary over starts.
    level = logits({"": start}, starts, spread=-0.1)[""]
    return analyse(logits(clients, starts), level, copies or {}, audit_settings)


HONEST = {name: [30.0, 30.0, 30.0, 30.0] for name in "abc"}
LEVEL = [20.0, 20.0, 20.0, 20.0]


def test_evidence_shares_and_scores_are_the_papers_on_mean_logits() -> None:
    clients = {"a": [30.0, 10.0, 25.0], "b": [22.0, 40.0, 5.0]}
    findings = judged(clients, [20.0, 18.0, 22.0])
    Q = evidence(torch.tensor(list(clients.values())).double(), torch.tensor([20.0, 18.0, 22.0]).double())
    np.testing.assert_allclose(list(findings.evidence.values()), Q.numpy(), rtol=1e-6)
    np.testing.assert_allclose(list(findings.shares.values()), shares(Q).numpy(), rtol=1e-6)
    np.testing.assert_allclose(list(findings.scores.values()), scores(Q).numpy(), rtol=1e-6)
    assert findings.bias == pytest.approx(20.0)
    assert sum(map(sum, findings.distribution.values())) == pytest.approx(1)


def test_the_standard_error_is_that_of_the_mean_over_starts() -> None:
    """Two clients, one class: the score of the first is q_a / (q_a + q_b), start by start."""
    a, b, g = [12.0, 14.0, 13.0], [18.0, 15.0, 19.0], [10.0, 10.0, 10.0]
    clients = {"a": torch.tensor(a)[:, None], "b": torch.tensor(b)[:, None]}
    audit_settings = AuditSettings.parse({"classes": ["0"], "num_starts": 3})
    findings = analyse(clients, torch.tensor(g)[:, None], {}, audit_settings)
    by_start = [(x - 10) / (x - 10 + y - 10) for x, y in zip(a, b, strict=True)]
    assert findings.probe_standard_errors["a"] == pytest.approx(np.std(by_start, ddof=1) / math.sqrt(3))


def test_holdings_follow_students_bound() -> None:
    rises = np.array([[[1.0, 5.0]], [[2.0, 5.1]], [[3.0, 4.9]]])
    bound = stats.t.ppf(1 - 0.05 / 2, 2) * np.std([1.0, 2.0, 3.0], ddof=1) / math.sqrt(3)
    assert 2 - bound < 0
    findings = class_holders(rises, 0.95)
    assert findings is not None
    assert findings.certain.tolist() == [[False, True]]
    assert findings.possible.tolist() == [[True, True]]


def test_one_start_makes_no_statement() -> None:
    findings = judged({**HONEST, "x": [5.0, 5.0, 5.0, 30.0]}, LEVEL, starts=1)
    assert findings.holds is None
    assert findings.flags == {}
    assert findings.sole_holders == {}
    assert set(findings.probe_standard_errors.values()) == {None}


def test_a_client_with_few_common_classes_is_flagged_and_a_maverick_is_not() -> None:
    shared = {name: [30.0, 30.0, 30.0, 30.0, 5.0] for name in "abc"}
    clients = shared | {"maverick": [5.0, 5.0, 5.0, 5.0, 30.0], "rider": [5.0, 30.0, 5.0, 5.0, 5.0]}
    findings = judged(clients, [20.0] * 5)
    assert findings.sole_holders == {"4": "maverick"}
    assert list(findings.flags) == ["rider"]
    # One class of five, with four holders: 1/20. Half of an equal share is 1/10.
    assert "1 of 5 classes" in findings.flags["rider"]
    assert "5.0 %" in findings.flags["rider"]
    assert findings.holds == {
        **{name: ["0", "1", "2", "3"] for name in "abc"},
        "maverick": ["4"],
        "rider": ["1"],
    }


def test_a_scaled_head_does_not_hide_a_free_rider() -> None:
    """Evidence grows with the logits; the number of held classes does not."""
    findings = judged({**HONEST, "rider": [500.0, 5.0, 5.0, 5.0]}, LEVEL)
    assert findings.scores["rider"] > 0.5 / 4
    assert list(findings.flags) == ["rider"]


def test_a_sole_holder_is_never_flagged() -> None:
    many = {name: [30.0] * 40 + [5.0] for name in "abc"}
    findings = judged(many | {"x": [5.0] * 40 + [30.0]}, [20.0] * 41)
    assert findings.sole_holders == {"40": "x"}
    assert findings.flags == {}


def test_uncertainty_counts_in_the_clients_favour() -> None:
    clients = {**HONEST, "x": [5.0, 30.0, 5.0, 5.0]}
    audit_settings = AuditSettings.parse({"classes": list("0123"), "num_starts": 5})
    level = logits({"": LEVEL}, spread=-0.1)[""]
    assert list(analyse(logits(clients), level, {}, audit_settings).flags) == ["x"]
    loud = logits(clients) | {"x": logits(clients, spread=40.0)["x"]}
    assert analyse(loud, level, {}, audit_settings).flags == {}


def test_duplicates_are_flagged_without_a_standard_error() -> None:
    copies = {"a": DuplicateUpload("b"), "b": DuplicateUpload("a"), "c": DuplicateUpload(None)}
    findings = judged(HONEST, LEVEL, starts=1, copies=copies)
    assert findings.flags["a"] == "sent the same tensors as b"
    assert findings.flags["c"] == "returned the model it was given, unchanged"


def test_without_any_evidence_no_client_is_flagged() -> None:
    findings = judged({name: [5.0, 5.0] for name in "abc"}, [20.0, 20.0])
    assert set(findings.scores.values()) == {0.0}
    assert findings.flags == {}
    assert findings.sole_holders == {}


tables = st.integers(2, 5).flatmap(
    lambda n: st.integers(1, 4).flatmap(
        lambda k: st.lists(st.lists(st.booleans(), min_size=k, max_size=k), min_size=n, max_size=n)
    )
)


@given(tables)
@settings(max_examples=100, deadline=None)
def test_coverage_of_certain_holdings_is_on_the_simplex(table: list[list[bool]]) -> None:
    held = np.array(table)
    coverage = ClassHolders(held, held).coverage()
    assert coverage.min() >= 0
    assert coverage.sum() == pytest.approx(1 if held.any() else 0)


@given(st.permutations(["a", "b", "c", "rider"]))
@settings(max_examples=10, deadline=None)
def test_the_order_of_clients_does_not_matter(order: list[str]) -> None:
    clients = {**HONEST, "a": [31.0, 5.0, 30.0, 30.0], "rider": [5.0, 30.0, 5.0, 5.0]}
    findings, other = judged(clients, LEVEL), judged({name: clients[name] for name in order}, LEVEL)
    for name in clients:
        assert other.scores[name] == pytest.approx(findings.scores[name])
    assert set(other.flags) == set(findings.flags)
