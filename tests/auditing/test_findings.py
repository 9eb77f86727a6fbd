"""What probes say and how surely: numbers by hand, and what must hold for any logits."""

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

from celm.auditing.findings import Copy, Findings, Holdings, holdings, judge
from celm.auditing.settings import Settings
from celm.method.evidence import evidence, scores, shares


def logits(rows: dict[str, list[float]], starts: int = 5, spread: float = 0.1) -> dict[str, Tensor]:
    """The same numbers in every start, a little apart, symmetrically."""
    steps = spread * (torch.arange(starts) - (starts - 1) / 2)
    return {name: torch.tensor(row) + steps[:, None] for name, row in rows.items()}


def judged(
    clients: dict[str, list[float]],
    start: list[float],
    starts: int = 5,
    copies: dict[str, Copy] | None = None,
    **more: Any,
) -> Findings:
    how = Settings.parse({"classes": [str(k) for k in range(len(start))], "starts": starts, **more})
    # The global model is spread the other way, so that differences vary, too.
    level = logits({"": start}, starts, spread=-0.1)[""]
    return judge(logits(clients, starts), level, copies or {}, how)


HONEST = {name: [30.0, 30.0, 30.0, 30.0] for name in "abc"}
LEVEL = [20.0, 20.0, 20.0, 20.0]


def test_evidence_shares_and_scores_are_the_papers_on_mean_logits() -> None:
    clients = {"a": [30.0, 10.0, 25.0], "b": [22.0, 40.0, 5.0]}
    found = judged(clients, [20.0, 18.0, 22.0])
    Q = evidence(torch.tensor(list(clients.values())).double(), torch.tensor([20.0, 18.0, 22.0]).double())
    np.testing.assert_allclose(list(found.evidence.values()), Q.numpy(), rtol=1e-6)
    np.testing.assert_allclose(list(found.shares.values()), shares(Q).numpy(), rtol=1e-6)
    np.testing.assert_allclose(list(found.scores.values()), scores(Q).numpy(), rtol=1e-6)
    assert found.bias == pytest.approx(20.0)
    assert sum(map(sum, found.distribution.values())) == pytest.approx(1)


def test_the_standard_error_is_that_of_the_mean_over_starts() -> None:
    """Two clients, one class: the score of the first is q_a / (q_a + q_b), start by start."""
    a, b, g = [12.0, 14.0, 13.0], [18.0, 15.0, 19.0], [10.0, 10.0, 10.0]
    clients = {"a": torch.tensor(a)[:, None], "b": torch.tensor(b)[:, None]}
    how = Settings.parse({"classes": ["0"], "starts": 3})
    found = judge(clients, torch.tensor(g)[:, None], {}, how)
    by_start = [(x - 10) / (x - 10 + y - 10) for x, y in zip(a, b, strict=True)]
    assert found.probe_standard_errors["a"] == pytest.approx(np.std(by_start, ddof=1) / math.sqrt(3))


def test_holdings_follow_students_bound() -> None:
    rises = np.array([[[1.0, 5.0]], [[2.0, 5.1]], [[3.0, 4.9]]])
    bound = stats.t.ppf(1 - 0.05 / 2, 2) * np.std([1.0, 2.0, 3.0], ddof=1) / math.sqrt(3)
    assert 2 - bound < 0
    found = holdings(rises, 0.95)
    assert found is not None
    assert found.surely.tolist() == [[False, True]]
    assert found.possibly.tolist() == [[True, True]]


def test_one_start_makes_no_statement() -> None:
    found = judged({**HONEST, "x": [5.0, 5.0, 5.0, 30.0]}, LEVEL, starts=1)
    assert found.holds is None
    assert found.flags == {}
    assert found.sole_holders == {}
    assert set(found.probe_standard_errors.values()) == {None}


def test_a_client_with_few_common_classes_is_flagged_and_a_maverick_is_not() -> None:
    shared = {name: [30.0, 30.0, 30.0, 30.0, 5.0] for name in "abc"}
    clients = shared | {"maverick": [5.0, 5.0, 5.0, 5.0, 30.0], "rider": [5.0, 30.0, 5.0, 5.0, 5.0]}
    found = judged(clients, [20.0] * 5)
    assert found.sole_holders == {"4": "maverick"}
    assert list(found.flags) == ["rider"]
    # One class of four holders, of five classes: 1/20, and half of an equal part is 1/10.
    assert "holds 1 of 5 classes at most, none of them alone: 5.0 %" in found.flags["rider"]
    assert found.holds == {
        **{name: ["0", "1", "2", "3"] for name in "abc"},
        "maverick": ["4"],
        "rider": ["1"],
    }


def test_a_louder_head_does_not_hide_a_free_rider() -> None:
    """Evidence grows with the logits; holdings do not."""
    found = judged({**HONEST, "rider": [500.0, 5.0, 5.0, 5.0]}, LEVEL)
    assert found.scores["rider"] > 0.5 / 4
    assert list(found.flags) == ["rider"]


def test_a_sole_holder_is_never_flagged_however_small_its_part() -> None:
    many = {name: [30.0] * 40 + [5.0] for name in "abc"}
    found = judged(many | {"x": [5.0] * 40 + [30.0]}, [20.0] * 41)
    assert found.sole_holders == {"40": "x"}
    assert found.flags == {}


def test_what_the_probe_cannot_tell_is_in_the_clients_favour() -> None:
    clients = {**HONEST, "x": [5.0, 30.0, 5.0, 5.0]}
    how = Settings.parse({"classes": list("0123"), "starts": 5})
    level = logits({"": LEVEL}, spread=-0.1)[""]
    assert list(judge(logits(clients), level, {}, how).flags) == ["x"]
    loud = logits(clients) | {"x": logits(clients, spread=40.0)["x"]}
    assert judge(loud, level, {}, how).flags == {}


def test_copies_are_facts_that_need_no_probe() -> None:
    copies = {"a": Copy("b"), "b": Copy("a"), "c": Copy(None)}
    found = judged(HONEST, LEVEL, starts=1, copies=copies)
    assert found.flags["a"] == "sent the same tensors as b"
    assert found.flags["c"] == "returned the model it was given, unchanged"


def test_without_any_evidence_nobody_is_blamed() -> None:
    found = judged({name: [5.0, 5.0] for name in "abc"}, [20.0, 20.0])
    assert set(found.scores.values()) == {0.0}
    assert found.flags == {}
    assert found.sole_holders == {}


tables = st.integers(2, 5).flatmap(
    lambda n: st.integers(1, 4).flatmap(
        lambda k: st.lists(st.lists(st.booleans(), min_size=k, max_size=k), min_size=n, max_size=n)
    )
)


@given(tables)
@settings(max_examples=100, deadline=None)
def test_coverage_of_sure_holdings_is_on_the_simplex(table: list[list[bool]]) -> None:
    held = np.array(table)
    coverage = Holdings(held, held).coverage()
    assert coverage.min() >= 0
    assert coverage.sum() == pytest.approx(1 if held.any() else 0)


@given(st.permutations(["a", "b", "c", "rider"]))
@settings(max_examples=10, deadline=None)
def test_the_order_of_clients_does_not_matter(order: list[str]) -> None:
    clients = {**HONEST, "a": [31.0, 5.0, 30.0, 30.0], "rider": [5.0, 30.0, 5.0, 5.0]}
    found, other = judged(clients, LEVEL), judged({name: clients[name] for name in order}, LEVEL)
    for name in clients:
        assert other.scores[name] == pytest.approx(found.scores[name])
    assert set(other.flags) == set(found.flags)
