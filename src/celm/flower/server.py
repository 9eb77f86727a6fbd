"""The server's side of a federation, without the messages: deliver, weigh and merge, keep.

The verbs are those of every rule (`celm.rules.rule`); what is added is that clients come and go, and that each round
is kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from logging import WARNING
from typing import Any

from flwr.supercore import log

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.names import in_order
from celm.federation.chain import digest_of
from celm.federation.rounds import weighed
from celm.flower import records
from celm.flower.intake import Intake
from celm.flower.state import Memory, ServerState
from celm.models.averaging import weighted_mean
from celm.models.state import StateDict, describe_mismatch
from celm.rules.exchange import Delivery, Round, Update, Validate
from celm.rules.robust.combine import Combine
from celm.rules.robust.filter import Filter, Filtered
from celm.rules.rule import AnyRule, Facts


@dataclass
class Stopwatch:
    """Seconds of each part of a round, in the order in which they ended."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = round(time.perf_counter() - start, 6)

    def shares(self) -> str:
        total = sum(self.seconds.values()) or 1.0
        return ", ".join(f"{part} {100 * seconds / total:.1f} %" for part, seconds in self.seconds.items())


@dataclass
class Server:
    rule: AnyRule
    rule_name: str
    facts: Facts
    """Without clients and rounds, which are known later."""
    validate: Validate | None
    memory: Memory
    heads_asked: int | None
    """For how many first rounds clients keep their own head; None: what the rule asks for."""
    reference: StateDict
    filter: Filter | None = None
    """Acts on updates before they are weighed."""
    combine: Combine | None = None
    """In place of the weighted mean."""
    state: ServerState | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def begin(self, rounds: int, sampling: Mapping[str, Any]) -> StateDict | None:
        """Get ready for so many rounds; the global model to go on with, where some are done already."""
        self.facts = replace(self.facts, rounds=rounds)
        self.settings = self.described(sampling)
        self.state = self.memory.restore(self.settings, self.rule.state_type, self.reference)
        return None if self.state is None else self.state.model

    def described(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """What results depend on, as JSON has it; a folder belongs to one set of them."""
        settings = {
            "rule": {"name": self.rule_name, **asdict(self.rule)},
            "probe": asdict(self.facts.probe),
            "rounds": self.facts.rounds,
            "local_heads": self.local_heads,
            "seed": self.facts.seed,
            "classes": self.facts.classes,
            "input_shape": list(self.facts.input_shape),
            "head": list(self.facts.head),
            "model": {name: list(tensor.shape) for name, tensor in self.reference.items()},
            **{
                name: {"name": type(robust).__name__, **asdict(robust)}
                for name, robust in (("filter", self.filter), ("combine", self.combine))
                if robust is not None
            },
            **sampling,
        }
        described: dict[str, Any] = json.loads(dump_json(settings))
        return described

    @property
    def done(self) -> int:
        return self.state.number if self.state else 0

    @property
    def local_heads(self) -> int:
        return self.rule.local_heads(self.facts.rounds) if self.heads_asked is None else self.heads_asked

    def welcome(self, online: Sequence[str], model: StateDict) -> None:
        """Begin a round: this is the global model, and whoever is online is known from now on."""
        known = tuple(in_order({*online, *(self.state.clients if self.state else ())}))
        if self.state is None:
            rule = self.rule.init(replace(self.facts, clients=known))
            self.state = ServerState(0, model, rule, known)
        else:
            self.state = replace(self.state, model=model, clients=known)

    def deliver(self, client: str) -> Delivery:
        """What the rule says, with the client's own last head while heads stay local."""
        state = self.now
        delivery = self.rule.deliver(state.rule, state.model, client)
        if client not in state.heads:
            return delivery
        return replace(delivery, model={**delivery.model, **state.heads[client]})

    def taken(self, delivered: Mapping[str, Delivery], intake: Intake) -> Filtered:
        """The round as the rule is to see it, and whom the filter left out."""
        average = self.combine or weighted_mean
        number, model = self.done + 1, self.now.model
        round = Round(number, 0.0, model, delivered, intake.updates, self.validate, average)
        return Filtered(round) if self.filter is None else self.filter.apply(round)

    def absorb(
        self,
        filtered: Filtered,
        asked: Sequence[str],
        online: Sequence[str],
        intake: Intake,
        metrics: dict[str, Any] | None,
        watch: Stopwatch,
    ) -> StateDict:
        """Weigh, merge and keep a round; the new global model."""
        before, number, taken = self.now, self.done + 1, filtered.round
        with watch.timed("weigh"):
            weighing = self.rule.weigh(before.rule, replace(self.facts, clients=before.clients), taken)
        with watch.timed("merge"):
            model = self.rule.merge(before.rule, taken, weighing)
        refused = describe_mismatch(model, before.model)
        if refused:
            # Numbers that are finite may add up to one that is not, and no client could go on from there.
            log(
                WARNING,
                "round %d: the global model stays as it was, since of the merged one %s",
                number,
                refused,
            )
            model = before.model
        after = ServerState(
            number, model, weighing.state, before.clients, self.heads_after(intake.updates, weighing.state)
        )
        with watch.timed("record"):
            facts = {
                "asked": list(asked),
                "absent": [client for client in before.clients if client not in online],
                "received": records.received(intake.updates),
                "excluded": {**intake.excluded, **filtered.excluded},
                "strays": intake.strays,
                **weighed(weighing),
                **({"merge": refused} if refused else {}),
                "metrics": metrics,
            }
            previous = records.last_digest(self.memory.records)
            settings = digest_of(self.settings)
            line = records.entry(number, before.model, model, settings, previous, facts)
        with watch.timed("save"):
            self.memory.keep(after, line, dict(watch.seconds))
        self.state = after
        return model

    def heads_after(self, updates: Mapping[str, Update], after: Any) -> dict[str, StateDict]:
        """The heads to send back next round, as they came; none once heads are shared."""
        if self.done + 1 >= self.local_heads or self.rule.settled(after):
            return {}
        names = self.facts.head
        sent = {client: {name: update.model[name] for name in names} for client, update in updates.items()}
        return {**self.now.heads, **sent}

    @property
    def now(self) -> ServerState:
        if self.state is None:
            raise CelmError("no client is known yet")
        return self.state
