"""Metrics over rounds, and the alarms that they give."""

from __future__ import annotations

from typing import Any

from celm.records.metric_series import find_alarms, metric_series


def evaluation(
    number: int, clients: dict[str, Any] | None, server: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"round": number, "clients": clients, "server": server}


def test_series_have_a_source_and_leave_out_what_is_not_one_finite_number() -> None:
    evaluations = [
        evaluation(0, None, {"accuracy": 0.1}),
        evaluation(1, {"accuracy": 0.5, "loss": float("inf"), "by_class": [0.1, 0.2]}, {"accuracy": 0.4}),
    ]
    records = [{"round": 1, "metrics": {"loss": 2.0}}, {"round": 2, "metrics": None}]
    found = {(line.source, line.name): dict(line.values) for line in metric_series(evaluations, records)}
    assert found == {
        ("clients", "accuracy"): {1: 0.5},
        ("server", "accuracy"): {0: 0.1, 1: 0.4},
        ("training", "loss"): {1: 2.0},
    }


def test_alarms_name_metric_source_round_and_values() -> None:
    values = [0.61, 0.74, 0.79, 0.0985, 0.1]
    lines = [evaluation(n, {"eval_acc": v, "loss": 100 * v}) for n, v in enumerate(values, start=1)]
    (alarm,) = find_alarms(metric_series(lines, []), 10)
    assert alarm.text == (
        "eval_acc (evaluated by clients) collapsed in round 4: 0.0985, after 0.79 in round 3; chance is 0.1"
    )
    assert not alarm.is_over
    (over,) = find_alarms(metric_series([*lines, evaluation(6, {"eval_acc": 0.8})], []), 10)
    assert (over.text, over.is_over) == (alarm.text, True)


def test_a_hostile_name_is_one_short_line() -> None:
    name = "acc \u202e\n" + "x" * 200
    lines = [evaluation(n, {name: v}) for n, v in enumerate([0.7, 0.8, 0.1], start=1)]
    (alarm,) = find_alarms(metric_series(lines, []), 10)
    assert alarm.text.isprintable()
    assert len(alarm.text) < 200
