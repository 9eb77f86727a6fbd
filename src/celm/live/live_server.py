"""The server of a live federation, without its framework's messages: send, aggregate, record, save.

The round itself is `celm.federation.server.server_step`. Added here: clients come and go, and every round is saved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from logging import WARNING
from pathlib import Path
from typing import Any

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.stage_timer import StageTimer
from celm.federation.server import (
    Server,
    ServerState,
    ServerStep,
    initial_server_state,
    make_messages,
    server_step,
    step_record,
)
from celm.live import round_record
from celm.live.amendments import Difference, account, compare_settings, field_defaults, keep_warmup
from celm.live.client_metrics import AggregatedMetrics, metrics_to_json
from celm.live.client_replies import ClientReplies
from celm.live.logger import log
from celm.live.server_model import ServerModel
from celm.live.state_store import SavedFederation, StateStore
from celm.models.state_dict import StateDict
from celm.records.federation_amendments import KEY_AMENDMENT, Amendment, apply_amendments
from celm.records.federation_records import FederationSettings
from celm.records.hash_chain import json_digest
from celm.rules.messages import ServerMessage, ValidateFn
from celm.rules.robust.aggregator import RobustAggregator
from celm.rules.robust.filter import Filter

_DEFAULTS_OF_OLDER_FOLDERS = {"weighted_by_key": "num-examples"}
"""Settings of the strategy that folders of an older celm do not have."""


@dataclass
class LiveServer:
    rule_name: str
    server: Server
    """Its context names no clients, and no rounds before `prepare`."""
    validate_fn: ValidateFn | None
    state_store: StateStore
    requested_head_rounds: int | None
    """Rounds in which clients keep their own head; None: as many as the rule asks for."""
    reference: StateDict
    """Names, shapes and dtypes of the tensors that clients exchange."""
    framework: str
    """The package that carries the messages; the record names its version."""
    state: ServerState | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    model_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the model, and a digest of its frozen tensors."""
    amendments: list[Amendment] = field(default_factory=list)
    """Amendments that the next line of the record will have."""

    def prepare(self, num_rounds: int | None, strategy_settings: Mapping[str, Any]) -> StateDict | None:
        """Restore the state for a federation of `num_rounds` rounds; return its global model, None before round 1."""
        if num_rounds is None and self.server.rule.depends_on_rounds:
            raise CelmError(
                f"rule '{self.rule_name}' depends on the number of rounds, which a wrapper does not pass on",
                "pass num_rounds=... to the strategy",
            )
        saved = self.state_store.load()
        # 0: not known, and nothing depends on it
        rounds = num_rounds or (int(saved.settings["rounds"]) if saved else 0)
        # A rule's schedule depends on the rounds that were agreed at the start: more rounds do not reopen its warm-up.
        planned_rounds = rounds if saved is None else int(saved.initial_settings["rounds"])
        requested = self.requested_head_rounds
        head_rounds = self.server.rule.local_head_rounds(planned_rounds) if requested is None else requested
        self.server = replace(
            self.server,
            context=replace(self.server.context, rounds=planned_rounds),
            local_head_rounds=head_rounds,
        )
        if saved is not None:
            self._keep_warmup(saved)
        self._warn_of_short_warmup(planned_rounds)
        self.settings = self._describe_settings(rounds, strategy_settings)
        self.amendments = [] if saved is None else self._amend_settings(saved)
        self.state = self.state_store.restore(saved, self.settings, self.server, self.reference)
        if self.state is None:
            return None
        self._log_amendments(self.state)
        return self.state.model

    def set_exchanged(self, reference: StateDict, model: ServerModel) -> None:
        """Exchange only the tensors in `reference`. A rule must not need a tensor of the head that is not sent."""
        head = tuple(name for name in model.head if name in reference)
        needs_head = self.server.rule.requirements.head or "head" in _evidence_kinds(self.server.rule)
        if needs_head and head != model.head:
            missing = next(name for name in model.head if name not in reference)
            raise CelmError(
                f"rule '{self.rule_name}' needs the whole last layer: {missing!r} is not exchanged",
                "add it to the initial arrays, or choose another rule",
            )
        context = replace(self.server.context, head=head, exchanged=tuple(reference))
        self.server = replace(self.server, context=context)
        self.reference, self.model_settings = reference, model.settings(reference)

    def _warn_of_short_warmup(self, rounds: int) -> None:
        """Log a warning if the federation is too short for the warm-up that its rule asks for."""
        min_warmup = getattr(self.server.rule, "min_warmup", None) or 0
        if rounds < min_warmup and self.server.local_head_rounds == rounds:
            log(
                WARNING,
                "a warm-up of %d rounds fits only in part: the federation has %d (weights are less certain)",
                min_warmup,
                rounds,
            )

    def _keep_warmup(self, saved: SavedFederation) -> None:
        """Use the warm-up that was agreed at the start; warn if other values are given now."""
        agreed, server = saved.settings, self.server
        ignored: list[Difference] = []
        if agreed["rule"].get("name") == self.rule_name:
            rule, ignored = keep_warmup(server.rule, agreed["rule"])
            server = replace(server, rule=rule)
        head_rounds = agreed.get("local_heads", server.local_head_rounds)
        if server.local_head_rounds != head_rounds and not ignored:
            ignored = [Difference("local_heads", head_rounds, server.local_head_rounds)]
        self.server = replace(server, local_head_rounds=head_rounds)
        for difference in ignored:
            log(WARNING, "the warm-up stays as agreed at the start: %s", difference)

    def _amend_settings(self, saved: SavedFederation) -> list[Amendment]:
        """Turn the settings of the folder into those given now; return the amendments. Refuse fixed settings."""
        server, folder = self.server, self.state_store.folder
        parts = {"rule": server.rule, "probe": server.context.probe, **self._robust_parts()}
        defaults = json.loads(dump_json({name: field_defaults(part) for name, part in parts.items()}))
        path = Path() if folder is None else folder.path
        agreed = {**_DEFAULTS_OF_OLDER_FOLDERS, **saved.settings}
        differences = compare_settings(agreed, self.settings, defaults, path)
        by = account()
        amendments = [Amendment(**asdict(difference), by=by) for difference in differences]
        self.settings = apply_amendments(saved.settings, amendments)
        return amendments

    def _log_amendments(self, state: ServerState) -> None:
        """Log the amendments, and refuse a combination of settings that the rule does not support."""
        by = account()
        for client, (before, after) in self.state_store.key_changes.items():
            setting = f"{KEY_AMENDMENT}{client}"
            self.amendments.append(Amendment(setting=setting, before=before, after=after, by=by))
        if self.amendments:
            self.server.rule.init(replace(self.server.context, clients=state.clients))
        for amendment in self.amendments:
            log(
                WARNING,
                "amended from round %d on: %s: %s, before %s",
                state.round_number + 1,
                amendment.setting,
                dump_json(amendment.after),
                dump_json(amendment.before),
            )

    def _robust_parts(self) -> dict[str, Filter | RobustAggregator]:
        parts = {"filter": self.server.filter, "aggregator": self.server.aggregator}
        return {name: part for name, part in parts.items() if isinstance(part, Filter | RobustAggregator)}

    def _describe_settings(self, rounds: int, strategy_settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return everything that results depend on, as JSON."""
        server, context = self.server, self.server.context
        settings = {
            "schema_version": FederationSettings.current_version(),
            "rule": {"name": self.rule_name, **asdict(server.rule)},
            "probe": asdict(context.probe),
            "rounds": rounds,
            "local_heads": server.local_head_rounds,
            "seed": context.seed,
            "classes": context.classes,
            "input_shape": list(context.input_shape),
            "head": list(context.head),
            "model": {name: list(tensor.shape) for name, tensor in self.reference.items()},
            **self.model_settings,
            **{
                name: {"name": type(part).__name__, **asdict(part)}
                for name, part in self._robust_parts().items()
            },
            **strategy_settings,
        }
        as_json: dict[str, Any] = json.loads(dump_json(settings))
        return as_json

    @property
    def rounds_done(self) -> int:
        return self.state.round_number if self.state else 0

    @property
    def current_state(self) -> ServerState:
        if self.state is None:
            raise CelmError("no client is known yet")
        return self.state

    def register_clients(self, online: Sequence[str], model: StateDict) -> None:
        """Begin a round with this global model; clients that are online belong to the federation from now on."""
        clients = tuple(natural_sorted({*online, *(self.state.clients if self.state else ())}))
        if self.state is None:
            self.state = initial_server_state(self.server, model, clients)
        else:
            self.state = replace(self.state, model=model, clients=clients)

    def make_messages(self, clients: Sequence[str]) -> dict[str, ServerMessage]:
        """Return the message to each client."""
        return make_messages(self.server, self.current_state, clients)

    def step(
        self, messages: Mapping[str, ServerMessage], replies: ClientReplies, timer: StageTimer
    ) -> ServerStep:
        """Aggregate a round without saving it."""
        step = server_step(
            self.server, self.current_state, messages, replies.updates, self.validate_fn, replies.excluded
        )
        timer.seconds.update(step.seconds)
        if step.rejected_merge:
            log(
                WARNING,
                "round %d: the aggregated model was refused: %s (the global model is unchanged)",
                step.state.round_number,
                step.rejected_merge,
            )
        return step

    def save(
        self,
        step: ServerStep,
        selected: Sequence[str],
        online: Sequence[str],
        replies: ClientReplies,
        metrics: AggregatedMetrics,
        timer: StageTimer,
    ) -> None:
        """Append the round to the record, save its state and make it the current one."""
        previous_state = self.current_state
        with timer.timed("record"):
            events = {
                "asked": list(selected),
                "absent": [client for client in previous_state.clients if client not in online],
                "keys": self.state_store.client_keys(previous_state.clients),
                "amendments": [amendment.model_dump() for amendment in self.amendments],
                "received": round_record.update_digests(replies.updates),
                "excluded": dict(step.excluded),
                "unexpected": replies.unexpected,
                **step_record(step),
                "metrics": metrics_to_json(metrics.values),
                "metrics_excluded": dict(metrics.excluded),
                **self.state_store.known_witnesses(replies.witnesses),
            }
            line = round_record.make_round_record(
                step.state.round_number,
                previous_state.model,
                step.state.model,
                json_digest(self.settings),
                self.framework,
                self.state_store.round_links(),
                events,
            )
        with timer.timed("save"):
            self.state_store.save_round(step.state, line, dict(timer.seconds))
        self.state, self.amendments = step.state, []


def _evidence_kinds(rule: object) -> tuple[str | None, str | None]:
    """Return the evidence of a rule's weights and of its reported scores; None for rules that have none."""
    return getattr(rule, "evidence", None), getattr(rule, "scores_from", None)
