"""A live federation without its messages: built from an operator's settings, one round at a time.

A framework's package sends `LiveRound.server_messages` and validates the replies. `close_round` does the rest: server
step, record, saved state, outputs and log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from torch import Tensor

from celm.base.errors import CelmError
from celm.base.stage_timer import StageTimer
from celm.core.probe import probe as probe_here
from celm.engines.ray_prober import RayProber
from celm.federation.build import check_device
from celm.federation.flags import Flags, round_flags
from celm.federation.server import ServerStep
from celm.live.array_layout import ArrayLayout
from celm.live.client_metrics import AggregatedMetrics, metrics_to_json
from celm.live.client_replies import ClientReplies
from celm.live.live_server import LiveServer
from celm.live.logger import log
from celm.live.metrics_log import MetricsLog, log_new_alarms
from celm.live.round_log import FlagLog, log_weights
from celm.live.round_outputs import RoundOutputs
from celm.live.server_model import ModelOrFactory, ServerModel, check_validation_data, make_validate_fn
from celm.live.server_parts import Settings, build_server
from celm.live.state_store import StateStore
from celm.live.summary_table import format_contributions
from celm.models.adapter_settings import AdapterSettings
from celm.models.state_dict import StateDict
from celm.operations.alerts import Alert
from celm.records.federation_records import EvaluationRecord
from celm.records.schema import make_line
from celm.rules.messages import ServerMessage
from celm.rules.rule import AnyRule, ServerContext


@dataclass(frozen=True)
class LiveRound:
    """An attempt at a round whose replies are awaited."""

    round_number: int
    attempt: int
    online: tuple[str, ...]
    server_messages: Mapping[str, ServerMessage]
    timer: StageTimer


@dataclass
class LiveFederation:
    model: ServerModel
    live_server: LiveServer
    state_store: StateStore
    outputs: RoundOutputs
    min_clients: int
    """Usable replies that a round needs."""
    train_log: MetricsLog = field(default_factory=lambda: MetricsLog("train"))
    flag_log: FlagLog = field(default_factory=FlagLog)

    @classmethod
    def build(
        cls,
        framework: str,
        rule: str | AnyRule,
        model: ModelOrFactory,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        rule_options: Mapping[str, Any],
        preset: str | None,
        probe: Settings,
        probe_engine: str,
        filter: Settings,
        aggregator: Settings,
        head: str | None,
        partial: bool,
        adapters: AdapterSettings,
        local_heads: int | None,
        validation: tuple[Tensor, Tensor] | None,
        seed: int,
        folder: str | Path | None,
        min_clients: int,
        device: str,
        alerts: Sequence[Alert],
        keep_uploads: int,
        upload_bytes: int,
        refresh_report: bool,
        signing_key: str | Path | None = None,
    ) -> LiveFederation:
        """Build the server of a federation; the parameters are those of the Flower strategy."""
        server_model = ServerModel.build(
            model, input_shape, classes, check_device(device), head, adapters, partial
        )
        name = rule if isinstance(rule, str) else type(rule).__name__.lower()
        if probe_engine not in ("local", "ray"):
            raise CelmError(f"probe_engine must be 'local' or 'ray', not {probe_engine!r}")
        probe_fn = RayProber() if probe_engine == "ray" else probe_here
        context = ServerContext(
            (),
            classes,
            input_shape,
            0,
            seed,
            server_model.probed_module,
            server_model.head,
            probe_fn=probe_fn,
        )
        server = build_server(rule, rule_options, preset, probe, filter, aggregator, context, adapters)
        check_validation_data(name, server.rule.requirements, validation)
        store = StateStore(folder, signing_key)
        outputs = RoundOutputs(store, alerts, keep_uploads, upload_bytes, refresh_report)
        if store.folder is not None:
            log(INFO, "State and record are saved in %s", store.folder.path)
        validate_fn = validation and make_validate_fn(server_model.module, classes, *validation)
        reference = server_model.reference()
        live_server = LiveServer(name, server, validate_fn, store, local_heads, reference, framework)
        return cls(server_model, live_server, store, outputs, max(1, min_clients))

    @property
    def rounds_done(self) -> int:
        return self.live_server.rounds_done

    def prepare(
        self, layout: ArrayLayout[Any], num_rounds: int | None, framework_settings: Mapping[str, Any]
    ) -> StateDict | None:
        """Restore the state of the folder; return its global model, None before round 1."""
        self.live_server.set_exchanged(layout.reference, self.model)
        model = self.live_server.prepare(num_rounds, framework_settings)
        self.flag_log = FlagLog.from_records(self.state_store.records)
        return model

    def close_round(
        self,
        round: LiveRound,
        replies: ClientReplies,
        average_metrics: Callable[[Collection[str]], AggregatedMetrics],
    ) -> tuple[ServerStep, AggregatedMetrics] | None:
        """Aggregate and save a round; log and save a failed attempt, and return None, if too few replies are usable.

        `average_metrics` takes the clients whose updates were aggregated.
        """
        usable = len(replies.updates)
        for description in replies.unexpected:
            log(WARNING, "\t> ignored: %s", description)
        step = None
        if usable >= self.min_clients:
            step = self.live_server.step(round.server_messages, replies, round.timer)
        if step is None or step.result is None:
            excluded = dict(replies.excluded if step is None else step.excluded)
            flags = round_flags([], {}, excluded, {}) if step is None else step.flags
            self._fail_attempt(round, excluded, flags, replies.unexpected, usable)
            return None
        aggregated = self.train_log.update(average_metrics(step.clients))
        selected, start = list(round.server_messages), self.live_server.current_state.model
        self.live_server.save(step, selected, round.online, replies, aggregated, round.timer)
        self.outputs.save_uploads(self.rounds_done, start, replies.updates)
        events = self.flag_log.update(round.round_number, step.flags, selected)
        self.outputs.after_round(events, self.live_server.settings["rounds"], round.timer.seconds)
        log_weights(step.result.client_weights)
        return step, aggregated

    def _fail_attempt(
        self, round: LiveRound, excluded: Mapping[str, str], flags: Flags, unexpected: list[str], usable: int
    ) -> None:
        """Log and save an attempt at a round with too few usable replies."""
        for client, reasons in flags.items():
            for kind, reason in reasons.items():
                log(WARNING, "\t> %s: %s: %s", kind, client, reason)
        log(WARNING, "%d usable replies, %d needed", usable, self.min_clients)
        failure = {"round": round.round_number, "attempt": round.attempt + 1, "excluded": dict(excluded)}
        self.state_store.save_failure({**failure, "unexpected": unexpected})
        self.outputs.after_failed_attempt(round.round_number, usable, self.min_clients)

    def too_few_replies(self, round_number: int, attempts: int) -> CelmError:
        """Return the error of a round that failed in all attempts."""
        folder = self.state_store.folder
        saved = "" if folder is None else f"; the state is saved in {folder.path}"
        return CelmError(
            f"round {round_number}: fewer than {self.min_clients} usable replies in {attempts} attempts{saved}",
            "the log has the reason for each client",
        )

    def save_evaluation(
        self,
        round_number: int,
        by_clients: Mapping[str, Any] | None,
        by_server: Mapping[str, Any] | None,
        others: Mapping[str, Any],
    ) -> None:
        """Append an evaluation to the record, with the keys in `others`, and warn if accuracy collapsed."""
        line: dict[str, Any] = {
            "round": round_number,
            "clients": metrics_to_json(by_clients),
            "server": metrics_to_json(by_server),
            **others,
        }
        self.state_store.save_evaluation(make_line(EvaluationRecord, line))
        evaluations = list(self.state_store.evaluations.values())
        alarms = log_new_alarms(
            evaluations, self.state_store.records, self.live_server.server.context.classes
        )
        self.outputs.after_evaluation(round_number, alarms)

    # --- results ----------------------------------------------------------------------------------------------

    @property
    def contributions(self) -> dict[int, dict[str, float]]:
        """Round to client to weight, over all clients seen until then."""
        return {line["round"]: line["client_weights"] for line in self.state_store.records}

    @property
    def earned(self) -> dict[str, float]:
        """Client to the mean over all rounds of its contribution, 0 in rounds without a usable update."""
        records = self.state_store.records
        return dict(records[-1].get("earned", {})) if records else {}

    @property
    def evidence(self) -> dict[int, dict[str, list[float]]]:
        """Round to client to evidence by class, for the probed rounds."""
        lines = self.state_store.records
        return {line["round"]: line["evidence"] for line in lines if line["evidence"]}

    def table(self) -> str:
        """Return the contributions as text."""
        folder = self.state_store.folder
        return format_contributions(self.state_store.records, None if folder is None else folder.path)
