"""metrics.prom: the state of a federation in OpenMetrics text, for Prometheus' textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from celm.base.text import printable
from celm.records.metric_series import metric_series

METRICS_FILE = "metrics.prom"
_Sample = tuple[Mapping[str, str], float]


def format_metrics(
    records: Sequence[Mapping[str, Any]],
    evaluations: Iterable[Mapping[str, Any]],
    planned_rounds: int,
    failed_attempts: int,
    seconds: Mapping[str, float],
) -> str:
    """Return the metrics after the last of `records`. `seconds` are those of the stages of the last round."""
    last = records[-1]
    flags = last.get("flags", {})
    families: list[tuple[str, str, list[_Sample]]] = [
        ("celm_rounds", "Finished rounds.", [({}, last["round"])]),
        ("celm_rounds_planned", "Planned rounds, 0 if not known.", [({}, planned_rounds)]),
        (
            "celm_round_end_timestamp_seconds",
            "When the last round ended.",
            [({}, datetime.fromisoformat(last["time"]).timestamp())],
        ),
        (
            "celm_failed_attempts",
            "Attempts at a round with too few usable replies.",
            [({}, failed_attempts)],
        ),
        (
            "celm_clients",
            "Clients of the last round by state.",
            [
                ({"state": "asked"}, len(last["asked"])),
                ({"state": "answered"}, len(last["received"])),
                ({"state": "excluded"}, len(last["excluded"])),
                ({"state": "absent"}, len(last["absent"])),
                ({"state": "flagged"}, len(flags)),
            ],
        ),
        ("celm_client_weight", "Weight of a client.", _by_client(last["client_weights"])),
        (
            "celm_client_earned",
            "What a client has earned, as a fraction.",
            _by_client(last.get("earned", {})),
        ),
        (
            "celm_client_flag",
            "1 for each flag of the last round.",
            [({"client": client, "kind": kind}, 1) for client, kinds in flags.items() for kind in kinds],
        ),
        ("celm_metric", "Last value of a metric of the federation.", _last_values(records, evaluations)),
        (
            "celm_stage_seconds",
            "Seconds of a stage of the last round.",
            [({"stage": stage}, value) for stage, value in seconds.items()],
        ),
    ]
    lines = []
    for name, description, samples in families:
        lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_format_labels(labels)} {float(value)!r}" for labels, value in samples]
    return "\n".join([*lines, "# EOF", ""])


def _by_client(values: Mapping[str, float]) -> list[_Sample]:
    return [({"client": client}, value) for client, value in values.items()]


def _last_values(
    records: Sequence[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> list[_Sample]:
    series = metric_series(evaluations, records)
    return [({"source": line.source, "name": line.name}, list(line.values.values())[-1]) for line in series]


def _format_labels(labels: Mapping[str, str]) -> str:
    """Return labels in braces. Names are untrusted text.

    >>> _format_labels({"client": 'a"b', "kind": "idle"})
    '{client="a\\\\"b",kind="idle"}'
    """
    escaped = {
        name: printable(text).replace("\\", "\\\\").replace('"', '\\"') for name, text in labels.items()
    }
    return "{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + "}" if labels else ""
