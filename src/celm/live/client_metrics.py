"""Aggregate the metrics that clients report, so that no single client sets the mean.

    mean = Σ_i n_i v_i / Σ_i n_i        n_i: what client i reports under `weighted_by_key`; 1 if no client reports it

For honest clients this is the mean of Flower's FedAvg. A client is left out, with a reason, if
- its metrics are not numbers, are not finite, or are others than those of most clients;
- its n_i is not a number between 0 and 2⁵³;
- its accuracy is outside 0 to 1 (0 to 100) although those of most clients are within;
- one of its values is over a million times larger than the median of all clients, and than 1 (three clients or more).
If clients disagree about the names and no group is the largest one, all are left out and there is no mean.
If three clients or more report n_i > 0, the largest n_i counts as at most the sum of all others, so that no client has
more than half of the weight.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from statistics import median
from typing import Any

from celm.base.text import quote as quote_name
from celm.live.logger import log
from celm.metrics.collapse import is_accuracy

Metrics = Mapping[str, Any]
"""Name to a number or a list of numbers. What a client reports may have other values."""
CombineFn = Callable[[Mapping[str, Metrics]], Metrics]
"""Takes client to its usable metrics, and returns what they are together."""
_MAX_METRICS = 1000
"""Largest number of metrics of one client."""
_MAX_METRIC_NAME_LENGTH = 200
"""Largest length of a metric's name."""
_MAX_COUNT = 2**53
_MAX_RATIO = 1e6
"""Largest ratio of a value to the median of all clients."""
_MIN_CLIENTS_TO_COMPARE = 3
_Schema = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class AggregatedMetrics:
    """The mean of the metrics, and the clients that do not count in full."""

    values: Metrics | None = None
    """None if no client's metrics can be used."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Client to the reason why it is left out."""
    capped: Mapping[str, str] = field(default_factory=dict)
    """Client to how its number of examples is reduced."""


def aggregate_metrics(
    reported: Mapping[str, Metrics | str], key: str, combine: CombineFn | None = None
) -> AggregatedMetrics:
    """Return the aggregated metrics of the clients whose metrics can be used; a text says why a client has none."""
    excluded: dict[str, str] = {}
    usable: dict[str, Metrics] = {}
    for client, metrics in reported.items():
        reason = metrics if isinstance(metrics, str) else _find_fault(metrics, key)
        if reason is None and not isinstance(metrics, str):
            usable[client] = metrics
        else:
            excluded[client] = str(reason)
    for find_outliers in (_other_schemas, _other_scales):
        outliers = find_outliers(usable, key)
        excluded |= outliers
        usable = {client: metrics for client, metrics in usable.items() if client not in outliers}
    excluded = {client: excluded[client] for client in reported if client in excluded}
    capped = _cap_largest_count(usable, key)
    if not usable:
        return AggregatedMetrics(None, excluded, capped)
    try:
        values = combine(usable) if combine else mean_metrics(usable.values(), key)
    except Exception as error:  # the user's function on untrusted metrics must not end the federation
        reason = quote_name(f"{type(error).__name__}: {error}", 200)
        log(WARNING, "metrics could not be aggregated: %s", reason)
        return AggregatedMetrics(None, excluded, capped)
    return AggregatedMetrics(values, excluded, capped)


def _find_fault(metrics: Metrics, key: str) -> str | None:
    """Return why the metrics of a client cannot be used, None if they can be."""
    if len(metrics) > _MAX_METRICS:
        return f"{len(metrics)} metrics, more than {_MAX_METRICS}"
    for name, metric in metrics.items():
        if not isinstance(name, str) or len(name) > _MAX_METRIC_NAME_LENGTH or not name.isprintable():
            return f"unusable metric name {quote_name(name)}"
        if not all(map(_is_finite, _as_list(metric))):
            return f"reports {_describe_value(metric)} as {quote_name(name)}"
    if key in metrics and not _is_count(metrics[key]):
        return f"reports {_describe_value(metrics[key])} as {quote_name(key)}"
    return None


def _describe_value(value: object) -> str:
    if isinstance(value, int) and not -_MAX_COUNT <= value <= _MAX_COUNT:
        return "a too large number"  # Python refuses to print integers of thousands of digits
    return "a list" if isinstance(value, list) else quote_name(str(value), 40)


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An int may be too large for a float, which `math.isfinite` does not take.
    return is_number and -sys.float_info.max <= value <= sys.float_info.max  # type: ignore[operator]


def _is_count(value: object) -> bool:
    return not isinstance(value, list) and _is_finite(value) and 0 <= value < _MAX_COUNT  # type: ignore[operator]


def _other_schemas(metrics: Mapping[str, Metrics], key: str) -> dict[str, str]:
    """Return the clients whose metrics have other names or lengths than those of most clients.

    If two schemas are equally common, neither is the usual one, and all clients are returned.
    """
    schemas = {client: _schema_of(record) for client, record in metrics.items()}
    if not schemas:
        return {}
    (usual, count), *others = Counter(schemas.values()).most_common(2)
    if others and others[0][1] == count:
        reason = "clients report different metrics, and none of them like most clients"
        return dict.fromkeys(schemas, reason)
    return {
        client: _describe_difference(schema, usual) for client, schema in schemas.items() if schema != usual
    }


def _schema_of(record: Metrics) -> _Schema:
    return frozenset((name, len(value) if isinstance(value, list) else -1) for name, value in record.items())


def _describe_difference(schema: _Schema, usual: _Schema) -> str:
    names, usual_names = {name for name, _ in schema}, {name for name, _ in usual}
    if missing := sorted(usual_names - names):
        return f"reports no {quote_name(missing[0])}, as most clients do"
    if extra := sorted(names - usual_names):
        return f"reports {quote_name(extra[0])}, as most clients do not"
    return (
        f"{quote_name(min(name for name, _ in schema - usual))} has another length than that of most clients"
    )


def _other_scales(metrics: Mapping[str, Metrics], key: str) -> dict[str, str]:
    """Return the clients with a value that most clients' values rule out."""
    excluded: dict[str, str] = {}
    for name in next(iter(metrics.values()), ()):
        if name == key or len(metrics) < _MIN_CLIENTS_TO_COMPARE:
            continue
        largest = {
            client: max(map(abs, _as_list(record[name])), default=0) for client, record in metrics.items()
        }
        bound = _MAX_RATIO * max(1.0, median(largest.values()))
        if is_accuracy(name):
            lowest = {client: min(_as_list(record[name]), default=0) for client, record in metrics.items()}
            full = _usual_full_accuracy(lowest, largest)
            excluded |= {
                client: f"reports {largest[client] if lowest[client] >= 0 else lowest[client]:.6g} as"
                f" {quote_name(name)}, most clients 0 to {full}"
                for client in metrics
                if full and not 0 <= lowest[client] <= largest[client] <= full
            }
        excluded |= {
            client: f"reports {value:.6g} as {quote_name(name)}, over a million times the median"
            for client, value in largest.items()
            if value > bound and client not in excluded
        }
    return excluded


def _usual_full_accuracy(lowest: Mapping[str, float], largest: Mapping[str, float]) -> int | None:
    """Return 1 or 100 if the accuracies of more than half of the clients are within 0 and that number."""
    for full in (1, 100):
        within = sum(0 <= lowest[client] <= largest[client] <= full for client in largest)
        if 2 * within > len(largest):
            return full
    return None


def _cap_largest_count(metrics: dict[str, Metrics], key: str) -> dict[str, str]:
    """Bound the largest count by the sum of all others, in place; return the client and what was done."""
    counts = {client: float(record.get(key, 0)) for client, record in metrics.items()}
    if sum(count > 0 for count in counts.values()) < _MIN_CLIENTS_TO_COMPARE:
        return {}
    largest = max(counts, key=lambda client: counts[client])
    others = math.fsum(count for client, count in counts.items() if client != largest)
    if counts[largest] <= others:
        return {}
    metrics[largest] = {**metrics[largest], key: others}
    return {
        largest: f"{quote_name(key)} is {counts[largest]:.6g}, counted as {others:.6g}, the sum of all others"
    }


def mean_metrics(reported: Iterable[Metrics], key: str) -> dict[str, Any]:
    """Return the mean, weighted by what clients report under `key`; equal weights if they report none or zeros."""
    records = list(reported)
    weights = [_as_list(record.get(key, 1.0))[0] for record in records]
    if not math.fsum(weights) > 0:
        weights = [1.0] * len(records)
    total = math.fsum(weights)
    result: dict[str, Any] = {}
    for name, first in records[0].items():
        if name == key:
            continue
        columns = zip(*(_as_list(record[name]) for record in records), strict=True)
        means = [math.fsum(w / total * v for w, v in zip(weights, column, strict=True)) for column in columns]
        result[name] = means if isinstance(first, list) else means[0]
    return result


def _as_list(value: Any) -> list[float]:
    return list(value) if isinstance(value, list) else [value]


def metrics_to_json(metrics: Metrics | None) -> dict[str, Any] | None:
    """Return the metrics without values that JSON cannot represent."""
    if metrics is None:
        return None
    return {name: value for name, value in metrics.items() if all(map(math.isfinite, _as_list(value)))}
