"""The loop over rounds: Flower's own, with two things more.

It goes on where the folder says that a killed server got to, and it tries a round again, a bounded number of times,
where too few usable replies came.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from celm.base.errors import CelmError
from celm.flower import metrics
from celm.flower.result import ContributionResult
from celm.flower.state import Memory
from celm.flower.table import contribution_table

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Course(Strategy):
    """A strategy that keeps what it does; rounds themselves are those of the class that is made of it."""

    memory: Memory
    min_clients: int
    retries: int
    retry_wait: float
    fraction_evaluate: float
    attempt: int = 0
    """How often the present round was tried before."""

    @abstractmethod
    def begin(self, initial_arrays: ArrayRecord, num_rounds: int) -> ArrayRecord:
        """Get ready; the arrays to go on with. `start` does it; a loop of your own must."""

    @property
    @abstractmethod
    def done(self) -> int:
        """Rounds done."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> ContributionResult:
        """As Flower's own; with a folder, from where it says that the federation got to."""
        log(INFO, "Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
        with self.memory.opened():
            arrays = self.begin(initial_arrays, num_rounds)
            self.summary()
            done = self.done
            if done:
                log(INFO, "Going on after round %d", done)
            for number in range(done, num_rounds + 1):
                if number > done:
                    log(INFO, "[ROUND %d/%d]", number, num_rounds)
                    arrays = self.train(grid, number, arrays, train_config or ConfigRecord(), timeout)
                if number not in self.memory.evaluations:
                    self.evaluate(
                        grid, number, arrays, evaluate_config or ConfigRecord(), timeout, evaluate_fn
                    )
            return self.result(arrays)

    def train(
        self, grid: Grid, number: int, arrays: ArrayRecord, config: ConfigRecord, timeout: float
    ) -> ArrayRecord:
        """One round, tried again where too few usable replies came."""
        for attempt in range(self.retries + 1):
            self.attempt = attempt
            messages = self.configure_train(number, arrays, config, grid)
            merged, _ = self.aggregate_train(number, grid.send_and_receive(messages, timeout=timeout))
            if merged is not None:
                self.attempt = 0
                return merged
            if attempt < self.retries:
                time.sleep(self.retry_wait)
        folder = self.memory.folder
        kept = "" if folder is None else f"; the state is kept in {folder.path}"
        raise CelmError(
            f"round {number}: fewer than {self.min_clients} usable replies in {self.retries + 1} attempts{kept}",
            "the log names the reason for each client",
        )

    def evaluate(
        self,
        grid: Grid,
        number: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        timeout: float,
        evaluate_fn: Evaluate | None,
    ) -> None:
        """The global model judged by clients (not before the first round) and by the server's own function."""
        by_clients = None
        if number and self.fraction_evaluate:
            messages = self.configure_evaluate(number, arrays, config, grid)
            by_clients = self.aggregate_evaluate(number, grid.send_and_receive(messages, timeout=timeout))
        by_server = evaluate_fn(number, arrays) if evaluate_fn else None
        for who, found in (("clients", by_clients), ("server", by_server)):
            if found is not None:
                log(INFO, "\t└──> evaluated by %s: %s", who, dict(found))
        line = {"round": number, "clients": metrics.plain(by_clients), "server": metrics.plain(by_server)}
        self.memory.keep_evaluation(line)

    def result(self, arrays: ArrayRecord) -> ContributionResult:
        lines, evaluations = self.memory.records, self.memory.evaluations.values()
        return ContributionResult(
            arrays=arrays,
            train_metrics_clientapp=metrics.by_round(lines, "metrics"),
            evaluate_metrics_clientapp=metrics.by_round(evaluations, "clients"),
            evaluate_metrics_serverapp=metrics.by_round(evaluations, "server"),
            contributions=self.contributions,
            evidence=self.evidence,
            records=list(lines),
        )

    @property
    def contributions(self) -> dict[int, dict[str, float]]:
        """Round to client to weight, over every client known by then."""
        return {line["round"]: line["standing"] for line in self.memory.records}

    def table(self) -> str:
        """Who contributed what, for a log."""
        folder = self.memory.folder
        return contribution_table(self.memory.records, None if folder is None else folder.path)

    @property
    def evidence(self) -> dict[int, dict[str, list[float]]]:
        """Round to client to evidence by class, for the rounds in which the rule probed."""
        lines = self.memory.records
        return {line["round"]: line["evidence"] for line in lines if line["evidence"]}
