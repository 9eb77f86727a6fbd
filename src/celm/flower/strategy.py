"""Contribution estimation as a Flower strategy: any rule of celm, with clients that know nothing of it.

A round: `configure_train` waits (within bounds) for nodes, draws some and delivers each what the rule says, with
the client's own last head while heads stay local; `aggregate_train` takes in what can be used, weighs, merges and
saves. The loop over rounds is in `celm.flower.course`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.names import in_order
from celm.engines.ray_probe import RayProber
from celm.federation.assembly import checked_device
from celm.federation.experiment import Experiment
from celm.federation.rounds import drawn
from celm.flower import metrics
from celm.flower.arrays import Layout, Refusal
from celm.flower.course import Course
from celm.flower.intake import EXAMINE, take_in
from celm.flower.model import Model, own_module, validator
from celm.flower.sampling import Identify, connected_nodes, sample_size
from celm.flower.server import Server, Stopwatch
from celm.flower.state import Memory
from celm.method.probe import probe as probe_here
from celm.models.anatomy import find_head, head_keys
from celm.models.state import StateDict, state_of
from celm.rules import rules
from celm.rules.exchange import Delivery
from celm.rules.robust import combines, filters
from celm.rules.rule import AnyRule, Facts, ProbeSettings


@dataclass(frozen=True)
class Asked:
    """A round under way."""

    number: int
    online: tuple[str, ...]
    messages: Mapping[str, Message]
    delivered: Mapping[str, Delivery]
    sent_at: float
    watch: Stopwatch


class ContributionStrategy(Course):
    """Weighs clients by a rule of celm.

    Parameters
    ----------
    rule : a rule's name (`celm list rules`), or a rule
    model : the module that clients train, or a function that makes it; its values do not matter
    input_shape, classes : the shape of one input, without the batch; the number of classes
    rule_options : settings of the rule named, as in `{"warmup": 5}`
    probe : settings of the probe, as in `{"steps": 200, "chunk": 100}`, or "fast"
    probe_engine : "local", or "ray" to probe on the Ray cluster that this process is in or that Ray finds
    filter : acts on updates before they are weighed, as in "clip_norm" or `{"name": "krum", "malicious": 1}`
    combine : in place of the weighted mean, as in "median"
    head : name of the last linear layer, where it is not found by itself
    local_heads : for how many first rounds clients keep their own head; by default what the rule asks for
    validation : inputs and labels held by the server, for the rules that need them
    seed : of the probe's noise and of the sampling of nodes
    folder : where state and record are kept; without one, a killed server starts again. A relative one is taken from
        the working folder, which Flower chooses: give an absolute one
    min_clients : usable replies that a round needs; by default two, or `min_train_nodes` where that is one
    retries, retry_wait : how often a round with fewer is tried again, and after how many seconds
    node_timeout : seconds to wait for nodes to connect
    identify : names the nodes; by default by registered name or key, and a node keeps the name it was given
    device : where the server weighs and merges

    All others are those of Flower's FedAvg.
    """

    def __init__(
        self,
        rule: str | AnyRule,
        model: Model,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        rule_options: Mapping[str, Any] | None = None,
        probe: Mapping[str, Any] | str | None = None,
        probe_engine: str = "local",
        filter: Mapping[str, Any] | str | None = None,
        combine: Mapping[str, Any] | str | None = None,
        head: str | None = None,
        local_heads: int | None = None,
        validation: tuple[Tensor, Tensor] | None = None,
        seed: int = 42,
        folder: str | Path | None = None,
        min_clients: int | None = None,
        retries: int = 3,
        retry_wait: float = 10.0,
        node_timeout: float = 600.0,
        identify: Identify | None = None,
        device: str = "cpu",
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: metrics.Aggregate | None = None,
        evaluate_metrics_aggr_fn: metrics.Aggregate | None = None,
    ) -> None:
        module = own_module(model, tuple(input_shape), classes).to(checked_device(device))
        built = rules.build(rule, rule_options or {}) if isinstance(rule, str) else rule
        name = rule if isinstance(rule, str) else type(rule).__name__.lower()
        if built.needs.validation and not built.needs.extras and validation is None:
            raise CelmError(
                f"rule '{name}' needs held-out data at the server", "give validation=(inputs, labels)"
            )
        given = {"probe": probe or {}, "filter": filter, "combine": combine}
        asked = Experiment.parse({name: value for name, value in given.items() if value is not None})
        probing = ProbeSettings(**asked.probe.model_dump())
        if probe_engine not in ("local", "ray"):
            raise CelmError(f"probe_engine must be 'local' or 'ray', not {probe_engine!r}")
        prober = RayProber() if probe_engine == "ray" else probe_here
        keys = head_keys(module, find_head(module, classes, head))
        self.memory = Memory(folder)
        if self.memory.folder is not None:
            log(INFO, "State and record are kept in %s", self.memory.folder.path)
        self.server = Server(
            built,
            name,
            Facts((), classes, tuple(input_shape), 0, seed, module, keys, probing, prober),
            None if validation is None else validator(module, classes, *validation),
            self.memory,
            local_heads,
            state_of(module),
            filters.build(asked.filter.name, asked.filter.options) if asked.filter else None,
            combines.build(asked.combine.name, asked.combine.options) if asked.combine else None,
        )
        self.min_clients = max(1, min(2, min_train_nodes) if min_clients is None else min_clients)
        self.retries = retries
        self.retry_wait = retry_wait
        self.node_timeout = node_timeout
        self.identify = identify or self.memory.identify
        for key, fraction in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            if not 0 <= fraction <= 1:
                raise CelmError(f"{key} must be between 0 and 1, not {fraction}")
        if not fraction_train or min_train_nodes < 1:
            raise CelmError("nobody would train", "fraction_train and min_train_nodes must be more than 0")
        self.fraction_train = fraction_train
        self.fraction_evaluate = fraction_evaluate
        self.min_train_nodes = min_train_nodes
        self.min_evaluate_nodes = min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.layout: Layout | None = None
        self.asked: Asked | None = None
        self.merged: list[bytes] = []
        self.attempt = 0

    # --- what a user reads ------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        return self.server.done

    def summary(self) -> None:
        """Log the settings as a tree."""
        server, facts = self.server, self.server.facts
        folder = self.memory.folder
        place = f"{next(iter(server.reference.values())).device}, {torch.get_num_threads()} threads"
        if isinstance(facts.prober, RayProber):
            place = "Ray"
        for line in (
            "├──> Rule:",
            f"│\t├──{server.rule_name}: {asdict(server.rule)}",
            f"│\t├──Clients keep their heads for {server.local_heads} of {facts.rounds} rounds",
            f"│\t├──Clients must also send: {server.rule.needs.extras or 'nothing'}",
            f"│\t├──Filter: {server.filter or 'none'}; combine: {server.combine or 'weighted mean'}",
            f"│\t└──Probe: {asdict(facts.probe)} on {place}",
            "├──> Sampling:",
            f"│\t├──Fraction: train ({self.fraction_train:.2f}) | evaluate ({self.fraction_evaluate:.2f})",
            f"│\t├──Minimum nodes: train ({self.min_train_nodes}) | evaluate ({self.min_evaluate_nodes})",
            f"│\t├──Minimum available nodes: {self.min_available_nodes} within {self.node_timeout:g} s",
            f"│\t└──Minimum usable replies: {self.min_clients} in {1 + self.retries} attempts",
            "├──> Keys in records:",
            f"│\t├── Samples: '{self.weighted_by_key}'",
            f"│\t├── ArrayRecord key: '{self.arrayrecord_key}'",
            f"│\t└── ConfigRecord key: '{self.configrecord_key}'",
            f"└──> State and record: {folder.path if folder else 'not kept (folder=... keeps them)'}",
        ):
            log(INFO, "\t%s", line)

    def begin(self, initial_arrays: ArrayRecord, num_rounds: int) -> ArrayRecord:
        """Get ready; the arrays to go on with. `start` does it; a loop of your own must."""
        self.layout = Layout.of(initial_arrays, self.server.reference)
        self.asked, self.merged, self.attempt = None, [], 0
        sampling = {"fraction_train": self.fraction_train, "min_train_nodes": self.min_train_nodes}
        model = self.server.begin(num_rounds, sampling)
        return initial_arrays if model is None else self.packed(model)

    # --- a round ----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for each node drawn, with what its client is delivered."""
        nodes = self.connected(grid, self.fraction_train, self.min_train_nodes)
        watch = Stopwatch()
        online = tuple(in_order(nodes))
        with watch.timed("deliver"):
            self.server.welcome(online, self.unpacked(arrays))
            count = sample_size(len(nodes), self.fraction_train, self.min_train_nodes)
            chosen = drawn(online, count, self.server.facts.seed, server_round, self.attempt)
            delivered = {client: self.server.deliver(client) for client in chosen}
            messages = {
                client: Message(
                    self.content(delivery, server_round, config), nodes[client], MessageType.TRAIN
                )
                for client, delivery in delivered.items()
            }
            self.begun.encoded.clear()
        log(INFO, "configure_train: %d of %d nodes", len(chosen), len(online))
        self.asked = Asked(server_round, online, messages, delivered, time.perf_counter(), watch)
        return list(messages.values())

    def content(self, delivery: Delivery, number: int, config: ConfigRecord) -> RecordDict:
        told = ConfigRecord({**config, "server-round": number})
        content = RecordDict(
            {self.arrayrecord_key: self.begun.pack(delivery.model), self.configrecord_key: told}
        )
        if delivery.examine is not None:
            content[EXAMINE] = self.begun.pack(delivery.examine)
        return content

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take in, weigh, merge, save; nothing where too few replies can be used."""
        asked = self.asked
        if asked is None or asked.number != server_round:
            raise CelmError(f"round {server_round} was not configured by this strategy")
        self.asked = None
        asked.watch.seconds["wait"] = round(time.perf_counter() - asked.sent_at, 6)
        with asked.watch.timed("validate"):
            sent = {client: message.metadata.message_id for client, message in asked.messages.items()}
            intake = take_in(replies, sent, self.begun, self.arrayrecord_key, self.weighted_by_key)
            filtered = self.server.taken(asked.delivered, intake)
        usable, excluded = filtered.round.clients, {**intake.excluded, **filtered.excluded}
        self.report(len(usable), excluded, intake.strays)
        if len(intake.updates) < self.min_clients or not usable:
            log(WARNING, "%d usable replies, %d needed", len(intake.updates), self.min_clients)
            failure = {"round": server_round, "attempt": self.attempt + 1, "excluded": excluded}
            self.memory.keep_failure({**failure, "strays": intake.strays})
            return None, None
        contents = [intake.contents[client] for client in usable]
        reported = metrics.aggregated(contents, self.weighted_by_key, self.train_metrics_aggr_fn)
        told = metrics.plain(reported)
        model = self.server.absorb(filtered, list(asked.delivered), asked.online, intake, told, asked.watch)
        log(INFO, "\t└──> of the round: %s", asked.watch.shares())
        return self.packed(model), reported

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The global model to some nodes."""
        if not self.fraction_evaluate:
            return []
        nodes = self.connected(grid, self.fraction_evaluate, self.min_evaluate_nodes)
        count = sample_size(len(nodes), self.fraction_evaluate, self.min_evaluate_nodes)
        told = ConfigRecord({**config, "server-round": server_round})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: told})
        chosen = drawn(in_order(nodes), count, self.server.facts.seed, server_round)
        return [Message(content, nodes[client], MessageType.EVALUATE) for client in chosen]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of what clients report; a reply that cannot be used is left out."""
        contents = metrics.contents_of(replies)
        return metrics.aggregated(contents, self.weighted_by_key, self.evaluate_metrics_aggr_fn)

    # --- helpers ----------------------------------------------------------------------------------------------

    @property
    def begun(self) -> Layout:
        if self.layout is None:
            raise CelmError("the strategy was not begun", "call start(), or begin() in a loop of your own")
        return self.layout

    def connected(self, grid: Grid, fraction: float, minimum: int) -> dict[str, int]:
        available, patience = self.min_available_nodes, self.node_timeout
        return connected_nodes(grid, self.identify, fraction, minimum, available, patience)

    def packed(self, model: StateDict) -> ArrayRecord:
        arrays = self.begun.pack(model)
        self.merged = [array.data for array in arrays.values()]
        return arrays

    def unpacked(self, arrays: ArrayRecord) -> StateDict:
        # What was merged last need not be decoded again; a loop of the user's own may have put something else there.
        data = [array.data for array in arrays.values()]
        if len(data) == len(self.merged) and all(map(operator.is_, data, self.merged)):
            return self.server.now.model
        try:
            return self.begun.unpack(arrays)
        except Refusal as refusal:
            raise CelmError(f"the global arrays do not fit the model: {refusal}") from refusal

    def report(self, usable: int, excluded: Mapping[str, str], strays: Iterable[str]) -> None:
        log(INFO, "aggregate_train: %d usable replies, %d excluded", usable, len(excluded))
        for client, reason in excluded.items():
            log(WARNING, "\t> excluded: %s: %s", client, reason)
        for stray in strays:
            log(WARNING, "\t> ignored: %s", stray)


class CelmStrategy(ContributionStrategy):
    """CELM: weights by class-wise contribution, from the clients' models alone.

    Settings of the rule go into `rule_options`, as in `rule_options={"warmup": 5}`; all others are those of
    `ContributionStrategy`. Where members may cheat: `{"evidence": "calibrated", "reprobe": "on-drift"}`, and
    `filter="clip_norm"`.
    """

    def __init__(self, model: Model, input_shape: tuple[int, ...], classes: int, **settings: Any) -> None:
        super().__init__("celm", model, input_shape, classes, **settings)
