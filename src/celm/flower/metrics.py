"""What clients report about themselves, averaged; a client that reports nonsense is left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.supercore import log

from celm.models.state import shown

Aggregate = Callable[[list[RecordDict], str], MetricRecord]
MOST = 1000
"""Metrics that one client may report."""
LONGEST = 200
"""Characters in the name of one."""


def aggregated(contents: Sequence[RecordDict], key: str, aggregate: Aggregate | None) -> MetricRecord | None:
    """The metrics of those replies that can be averaged with one another; None where there are none."""
    comparable = alike(contents)
    if not comparable:
        return None
    try:
        return (aggregate or mean)(comparable, key)
    except (
        Exception
    ) as error:  # a function of the user's, on what clients sent: no reason to end the federation
        log(WARNING, "metrics could not be aggregated: %s", shown(f"{type(error).__name__}: {error}", 200))
        return None


def contents_of(replies: Iterable[Message]) -> list[RecordDict]:
    return [reply.content for reply in replies if reply.has_content()]


def alike(contents: Sequence[RecordDict]) -> list[RecordDict]:
    """The replies with one record of finite metrics, of the form that most of them have."""
    forms = [form(content) for content in contents]
    counts = Counter(found for found in forms if found is not None)
    if not counts:
        return []
    usual = counts.most_common(1)[0][0]
    return [content for content, found in zip(contents, forms, strict=True) if found == usual]


def form(content: RecordDict) -> frozenset[tuple[str, int]] | None:
    """Names and lengths of the metrics; None where they are not to be used."""
    records = list(content.metric_records.values())
    if len(records) != 1 or len(records[0]) > MOST:
        return None
    metrics = records[0]
    finite = all(math.isfinite(value) for found in metrics.values() for value in as_list(found))
    if not finite or not all(len(name) <= LONGEST and name.isprintable() for name in metrics):
        return None
    return frozenset((name, len(value) if isinstance(value, list) else -1) for name, value in metrics.items())


def mean(contents: list[RecordDict], key: str) -> MetricRecord:
    """The mean by the weight that clients report under `key`, or with equal weights where they report none."""
    records = [next(iter(content.metric_records.values())) for content in contents]
    weights = [as_list(record.get(key, 1.0))[0] for record in records]
    if min(weights) < 0 or not math.fsum(weights) > 0:
        weights = [1.0] * len(records)
    total = math.fsum(weights)
    result = MetricRecord()
    for name, first in records[0].items():
        if name == key:
            continue
        columns = zip(*(as_list(record[name]) for record in records), strict=True)
        means = [math.fsum(w * v for w, v in zip(weights, column, strict=True)) / total for column in columns]
        result[name] = means if isinstance(first, list) else means[0]
    return result


def as_list(value: Any) -> list[float]:
    return list(value) if isinstance(value, list) else [value]


def plain(metrics: MetricRecord | None) -> dict[str, Any] | None:
    """For the record; what is not finite has no place in JSON and is left out."""
    if metrics is None:
        return None
    return {name: value for name, value in metrics.items() if all(map(math.isfinite, as_list(value)))}


def by_round(lines: Iterable[Mapping[str, Any]], key: str) -> dict[int, MetricRecord]:
    """Metrics from lines of the record, where there are any."""
    return {line["round"]: MetricRecord(line[key]) for line in lines if line[key] is not None}
