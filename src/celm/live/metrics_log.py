"""Log what changes in the metrics of clients: who is left out of a mean, and when accuracy collapses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from celm.live.client_metrics import AggregatedMetrics
from celm.live.logger import log
from celm.records.metric_series import find_alarms, metric_series


@dataclass
class MetricsLog:
    """Warnings about clients that do not count in a mean, once per change."""

    phase: str
    excluded: Mapping[str, str] = field(default_factory=dict)
    capped: Mapping[str, str] = field(default_factory=dict)

    def update(self, aggregated: AggregatedMetrics) -> AggregatedMetrics:
        """Log what is new since the last call; return `aggregated`."""
        for client, reason in aggregated.excluded.items():
            if self.excluded.get(client) != reason:
                log(WARNING, "\t> left out of the %s metrics: %s: %s", self.phase, client, reason)
        for client, reason in aggregated.capped.items():
            if client not in self.capped:
                log(WARNING, "\t> bounded in the %s metrics: %s: %s", self.phase, client, reason)
        self.excluded, self.capped = aggregated.excluded, aggregated.capped
        return aggregated


def log_new_alarms(
    evaluations: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]], classes: int
) -> list[str]:
    """Log and return what the last evaluation adds to the alarms: a collapse is new once, also after a restart."""
    earlier = evaluations[:-1]
    last_round = earlier[-1]["round"] if earlier else 0
    earlier_rounds = [line for line in rounds if line["round"] <= last_round]
    known = {alarm.text for alarm in find_alarms(metric_series(earlier, earlier_rounds), classes)}
    alarms = [alarm.text for alarm in find_alarms(metric_series(evaluations, rounds), classes)]
    new = [text for text in alarms if text not in known]
    for text in new:
        log(WARNING, "%s", text)
    return new
