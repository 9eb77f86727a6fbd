"""The metrics in Flower's replies: from records to `celm.live.client_metrics`, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import MetricRecord, RecordDict

from celm.live import client_metrics
from celm.live.client_metrics import AggregatedMetrics, CombineFn, Metrics

MetricsAggregateFn = Callable[[list[RecordDict], str], MetricRecord]


def aggregate_metrics(
    contents: Mapping[str, RecordDict], key: str, aggregate_fn: MetricsAggregateFn | None
) -> AggregatedMetrics:
    """Return the aggregated metrics of the clients whose metrics can be used."""
    reported = {client: _metrics_of(content) for client, content in contents.items()}
    combine = None if aggregate_fn is None else _combine_with(aggregate_fn, contents, key)
    return client_metrics.aggregate_metrics(reported, key, combine)


def _metrics_of(content: RecordDict) -> Metrics | str:
    """Return the only metric record of a reply, or why there is none."""
    records = list(content.metric_records.values())
    if len(records) == 1:
        return records[0]
    return f"{len(records)} metric records in its reply" if records else "no metrics in its reply"


def _combine_with(
    aggregate_fn: MetricsAggregateFn, contents: Mapping[str, RecordDict], key: str
) -> CombineFn:
    """Return a function that calls the user's own on the contents of the usable replies."""

    def combine(usable: Mapping[str, Metrics]) -> Metrics:
        bounded = []
        for client, metrics in usable.items():
            name = next(iter(contents[client].metric_records))
            bounded.append(RecordDict({**contents[client], name: MetricRecord(dict(metrics))}))
        return aggregate_fn(bounded, key)

    return combine


def to_metric_record(metrics: Metrics | None) -> MetricRecord | None:
    return metrics if metrics is None or isinstance(metrics, MetricRecord) else MetricRecord(dict(metrics))


def by_round(lines: Iterable[Mapping[str, Any]], key: str) -> dict[int, MetricRecord]:
    """Return round to metrics, for the lines that have metrics."""
    return {line["round"]: MetricRecord(line[key]) for line in lines if line[key] is not None}
