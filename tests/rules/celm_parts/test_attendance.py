"""Attendance against response rates counted by hand."""

from __future__ import annotations

import pytest

from celm.core.weights import ClientWeights
from celm.rules.celm_parts.attendance import Attendance

THIRDS = ClientWeights({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})


def test_weights_are_scaled_by_the_fraction_of_requests_that_were_answered() -> None:
    attendance = Attendance()
    for replied in (["a", "b"], ["a"], ["a"]):
        attendance = attendance.record(["a", "b"], replied)
    assert attendance == Attendance({"a": 3, "b": 3}, {"a": 3, "b": 1})
    # Rates 1, 1/3, and 1 for c, which had no request: 3/7, 1/7, 3/7.
    assert attendance.apply(THIRDS).by_client == pytest.approx({"a": 3 / 7, "b": 1 / 7, "c": 3 / 7})


def test_a_client_that_never_answers_has_no_weight() -> None:
    attendance = Attendance().record(["a", "b", "c"], ["a", "c"])
    assert attendance.apply(THIRDS).by_client == pytest.approx({"a": 0.5, "b": 0, "c": 0.5})


def test_with_every_reply_weights_are_the_same_to_the_bit() -> None:
    assert Attendance().record("abc", "abc").apply(THIRDS) is THIRDS
    assert Attendance().apply(THIRDS) is THIRDS


def test_newcomers_are_clients_without_a_reply() -> None:
    attendance = Attendance().record(["a", "b"], ["a"])
    assert attendance.newcomers(["a", "b", "c"]) == {"b", "c"}
    assert Attendance().newcomers("ab") == {"a", "b"}


def test_a_newcomer_takes_its_score_without_its_initial_weight() -> None:
    """β = 0 for b only: 0.5 · 1/2 + 0.5 · 0.4 = 0.45 for a, 0.6 for b, scaled to sum 1."""
    attendance = Attendance().record(["a"], ["a"])
    scores = {"a": 0.4, "b": 0.6}
    weights = ClientWeights({"a": 0.5, "b": 0.5}).smooth(scores, 0.5, reset=attendance.newcomers(scores))
    assert weights.by_client == pytest.approx({"a": 0.45 / 1.05, "b": 0.6 / 1.05})


def test_recording_leaves_the_earlier_attendance_unchanged() -> None:
    before = Attendance({"a": 1}, {"a": 1})
    before.record(["a"], [])
    assert before == Attendance({"a": 1}, {"a": 1})
