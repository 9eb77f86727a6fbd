"""Flower's loop over rounds, resumable and with retries.

It continues after the last saved round, and repeats a round, a bounded number of times, if too few replies are usable.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from celm.base.errors import CelmError
from celm.flower import metrics
from celm.flower.evaluation import Evaluation
from celm.flower.message_exchange import send_and_receive
from celm.flower.result import ContributionResult
from celm.flower.round_config import RoundConfig
from celm.live.live_federation import LiveFederation
from celm.live.live_server import LiveServer
from celm.live.logger import log
from celm.live.round_outputs import RoundOutputs
from celm.live.state_store import StateStore

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class ResumableStrategy(Strategy):
    """A strategy that saves every round. Subclasses implement the rounds."""

    federation: LiveFederation
    retries: int
    retry_wait: float
    fraction_evaluate: float
    evaluation: Evaluation
    attempt: int = 0
    """Number of failed attempts at the current round."""
    is_in_start: bool = False
    """Whether the loop over rounds is that of `start`."""

    @abstractmethod
    def prepare(self, initial_arrays: ArrayRecord, num_rounds: int | None = None) -> ArrayRecord:
        """Lock the folder, restore the state and return the arrays to continue from."""

    @property
    @abstractmethod
    def is_prepared(self) -> bool:
        """Whether `prepare` was called."""

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds."""
        return self.federation.rounds_done

    @property
    def live_server(self) -> LiveServer:
        return self.federation.live_server

    @property
    def state_store(self) -> StateStore:
        return self.federation.state_store

    @property
    def outputs(self) -> RoundOutputs:
        return self.federation.outputs

    def prepare_own_loop(self, server_round: int, arrays: ArrayRecord) -> None:
        """Prepare the strategy if the loop over rounds is not `start` but a wrapper's or the user's own.

        Such a loop begins with round 1. Without a folder, round 1 therefore begins a new federation.
        """
        rounds_done = self.rounds_done if self.is_prepared else 0
        if not self.is_prepared or (server_round == 1 and rounds_done and self.state_store.folder is None):
            self.prepare(arrays)
        if server_round > self.rounds_done:
            return
        folder = self.state_store.folder
        raise CelmError(
            f"round {server_round} is finished already{'' if folder is None else f' in {folder.path}'}: "
            f"round {self.rounds_done + 1} is next",
            "choose another folder, or call prepare() and begin your own loop after rounds_done",
        )

    def save_own_loop_evaluation(self, server_round: int, by_clients: MetricRecord | None) -> None:
        """Save the evaluation of a round if the loop is a wrapper's or the user's own.

        The record counts finished rounds, so its number may be below that of the loop. The first evaluation of a
        finished round is saved: a second one follows only if training failed in between, or was not tried.
        """
        if self.is_in_start or not self.is_prepared or self.rounds_done in self.state_store.evaluations:
            return
        self.federation.save_evaluation(
            self.rounds_done, by_clients, None, self.evaluation.record(server_round)
        )

    def close(self) -> None:
        """Unlock the folder, which your own loop or a wrapper's holds until the strategy is deleted."""
        self.outputs.close()
        self.state_store.release_lock()

    def initialize_parameters(self, client_manager: object) -> None:
        """Refuse Flower's legacy API, which calls this first."""
        raise CelmError(
            f"{type(self).__name__} does not work with Flower's legacy API (start_server, ServerConfig)",
            "call strategy.start(grid, initial_arrays, num_rounds) in a ServerApp",
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> ContributionResult:
        """Run the rounds as Flower's `Strategy.start` does; with a folder, continue after the last saved round."""
        log(INFO, "Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
        with self.state_store.lock(), self._in_start():
            arrays = self.prepare(initial_arrays, num_rounds)
            self.summary()
            store = self.state_store
            train = RoundConfig.restore("train_config", train_config, store.train_config)
            evaluate = RoundConfig.restore("evaluate_config", evaluate_config, store.evaluate_config)
            rounds_done = self.rounds_done
            if rounds_done:
                log(INFO, "Resuming after round %d", rounds_done)
            for round_number in range(rounds_done, num_rounds + 1):
                if round_number > rounds_done:
                    log(INFO, "[ROUND %d/%d]", round_number, num_rounds)
                    arrays = self._train_with_retries(grid, round_number, arrays, train, timeout)
                if round_number not in store.evaluations:
                    self._evaluate_round(grid, round_number, arrays, evaluate, timeout, evaluate_fn)
            for line in self.table().splitlines():
                log(INFO, "%s", line)
            return self.result(arrays)

    @contextmanager
    def _in_start(self) -> Iterator[None]:
        self.is_in_start = True
        try:
            yield
        except Exception as error:
            self.outputs.stop(error)
            raise
        finally:
            self.is_in_start = False
            self.outputs.close()

    def _train_with_retries(
        self, grid: Grid, round_number: int, arrays: ArrayRecord, round_config: RoundConfig, timeout: float
    ) -> ArrayRecord:
        """Run one round; repeat it if too few replies are usable."""
        for attempt in range(self.retries + 1):
            self.attempt = attempt
            config = round_config.copy_for_attempt()
            messages = self.configure_train(round_number, arrays, config, grid)
            replies = send_and_receive(grid, messages, timeout)
            self.state_store.train_config = round_config.to_json(config)  # saved with the round
            aggregated, _ = self.aggregate_train(round_number, replies)
            if aggregated is not None:
                round_config.current = config
                self.attempt = 0
                return aggregated
            if attempt < self.retries:
                time.sleep(self.retry_wait)
        raise self.federation.too_few_replies(round_number, self.retries + 1)

    def _evaluate_round(
        self,
        grid: Grid,
        round_number: int,
        arrays: ArrayRecord,
        round_config: RoundConfig,
        timeout: float,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        """Evaluate the global model on clients (from round 1 on) and with the server's own function."""
        by_clients, config = None, round_config.copy_for_attempt()
        if round_number and self.fraction_evaluate:
            messages = self.configure_evaluate(round_number, arrays, config, grid)
            by_clients = self.aggregate_evaluate(round_number, send_and_receive(grid, messages, timeout))
        by_server = evaluate_fn(round_number, arrays) if evaluate_fn else None
        for evaluator, values in (("clients", by_clients), ("server", by_server)):
            if values is not None:
                log(INFO, "\t└──> evaluated by %s: %s", evaluator, dict(values))
        others: dict[str, Any] = self.evaluation.record(round_number)
        changed_config = round_config.to_json(config)
        if changed_config is not None:
            others["config"] = changed_config
        self.federation.save_evaluation(round_number, by_clients, by_server, others)
        round_config.current = config

    def result(self, arrays: ArrayRecord) -> ContributionResult:
        lines, evaluations = self.state_store.records, self.state_store.evaluations.values()
        return ContributionResult(
            arrays=arrays,
            train_metrics_clientapp=metrics.by_round(lines, "metrics"),
            evaluate_metrics_clientapp=metrics.by_round(evaluations, "clients"),
            evaluate_metrics_serverapp=metrics.by_round(evaluations, "server"),
            contributions=self.contributions,
            earned=self.earned,
            evidence=self.evidence,
            records=list(lines),
        )

    @property
    def contributions(self) -> dict[int, dict[str, float]]:
        """Round to client to weight, over all clients seen until then."""
        return self.federation.contributions

    @property
    def earned(self) -> dict[str, float]:
        """Client to the mean over all rounds of its contribution, 0 in rounds without a usable update."""
        return self.federation.earned

    def table(self) -> str:
        """Return the contributions as text."""
        return self.federation.table()

    @property
    def evidence(self) -> dict[int, dict[str, list[float]]]:
        """Round to client to evidence by class, for the probed rounds."""
        return self.federation.evidence
