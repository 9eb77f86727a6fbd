"""Contribution estimation as a Flower strategy: any rule of celm, with unchanged clients.

In a round, `configure_train` waits for nodes, within bounds, and sends each selected client its message.
`aggregate_train` validates the replies, runs the server step and saves the round. The loop over rounds is in
`celm.flower.resumable_strategy`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from logging import DEBUG, INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.base.renames import refuse_unknown_arguments
from celm.base.stage_timer import StageTimer
from celm.federation.round import sample_clients
from celm.flower import metrics
from celm.flower.array_codec import FlowerLayout
from celm.flower.bound_signature import fix_first_argument
from celm.flower.connected_nodes import IdentifyFn, check_sampling, sample_size, wait_for_enough_nodes
from celm.flower.evaluation import Evaluation
from celm.flower.json_logs import set_log_format
from celm.flower.pending_round import PendingRound
from celm.flower.reply_validation import validate_replies
from celm.flower.resumable_strategy import ResumableStrategy
from celm.flower.round_messages import make_evaluate_messages, make_train_messages
from celm.flower.settings_tree import settings_tree
from celm.live.array_layout import InvalidReplyError
from celm.live.live_federation import LiveFederation, LiveRound
from celm.live.logger import log
from celm.live.server_model import ModelOrFactory
from celm.models.adapter_settings import AdapterSettings, OutputKind
from celm.models.state_dict import StateDict
from celm.operations.alerts import Alert
from celm.rules.rule import AnyRule


class ContributionStrategy(ResumableStrategy):
    """Aggregate with the weights of a celm rule, and keep a record of contributions.

    Parameters
    ----------
    rule : a rule's name (`celm list rules`), or a rule
    model : the module that clients train, or a function that returns it; its values are used only if `partial`
    input_shape, classes : the shape of one input, without the batch; the number of classes
    partial : clients exchange a part of the tensors, such as adapters; the others are frozen at the values of `model`
    layer : a layer whose output is probed in place of the input, such as an embedding; `input_shape` is its shape
    output, mean, std : what the model returns ("logits", "sigmoid", "softmax"); the normalisation of its inputs
    rule_options : settings of the named rule, as in `{"warmup": 5}`
    preset : "trust" guards against members that cheat (`celm.experiment.presets`); None is the rule as printed
    probe : settings of the probe, as in `{"steps": 200, "chunk": 100}`, or "fast"
    probe_engine : "local", or "ray" to probe on a Ray cluster (this process's own, or the one that Ray finds)
    filter : checks or clips updates first, as in "clip_norm" or `{"name": "krum", "malicious": 1}`
    aggregator : replaces the weighted mean, as in "median"
    head : name of the last linear layer, if it is not found automatically
    local_heads : number of first rounds in which clients keep their own head; by default the rule decides
    validation : inputs and labels held by the server, for rules that need them
    seed : seed of the probe's noise and of the sampling of nodes
    folder : where state and record are saved; without one, a killed server starts again. Use an absolute path:
        Flower chooses the working folder
    min_clients : usable replies that a round needs; by default two, or one if `min_train_nodes` is one
    retries, retry_wait : how often a round with fewer replies is repeated, and after how many seconds
    node_timeout : seconds to wait for nodes to connect
    num_rounds : number of rounds, for wrappers and your own loop; `start` has its own argument
    identify : assigns names to nodes; by default the registered name or key, which a node keeps
    device : where the server computes weights and aggregates
    alerts : where events are sent, as in `[Webhook("https://..."), Command(["mail-operator"])]`
    log_format : "text", or "json" for one JSON object per log line
    keep_uploads, upload_bytes : of how many last rounds the uploads are kept in the folder; the bound on their size
    refresh_report : write report.html into the folder after each round
    signing_key : private key that signs the record (`celm keys make`); each message then has the newest signed head

    All other parameters are those of Flower's FedAvg.
    """

    def __init__(
        self,
        rule: str | AnyRule,
        model: ModelOrFactory,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        rule_options: Mapping[str, Any] | None = None,
        preset: str | None = "trust",
        probe: Mapping[str, Any] | str | None = None,
        probe_engine: str = "local",
        filter: Mapping[str, Any] | str | None = None,
        aggregator: Mapping[str, Any] | str | None = None,
        head: str | None = None,
        partial: bool = False,
        layer: str | None = None,
        output: OutputKind | None = None,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        local_heads: int | None = None,
        validation: tuple[Tensor, Tensor] | None = None,
        seed: int = 42,
        folder: str | Path | None = None,
        min_clients: int | None = None,
        retries: int = 3,
        retry_wait: float = 10.0,
        node_timeout: float = 600.0,
        num_rounds: int | None = None,
        identify: IdentifyFn | None = None,
        device: str = "cpu",
        alerts: Sequence[Alert] = (),
        log_format: str = "text",
        keep_uploads: int = 0,
        upload_bytes: int = 10_000_000_000,
        refresh_report: bool = False,
        signing_key: str | Path | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: metrics.MetricsAggregateFn | None = None,
        evaluate_metrics_aggr_fn: metrics.MetricsAggregateFn | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown_arguments(type(self).__name__, unknown)
        set_log_format(log_format)
        self.federation = LiveFederation.build(
            "flwr",
            rule,
            model,
            tuple(input_shape),
            classes,
            rule_options=rule_options or {},
            preset=preset,
            probe=probe,
            probe_engine=probe_engine,
            filter=filter,
            aggregator=aggregator,
            head=head,
            partial=partial,
            adapters=AdapterSettings(output, tuple(mean), tuple(std), layer=layer),
            local_heads=local_heads,
            validation=validation,
            seed=seed,
            folder=folder,
            min_clients=min(2, min_train_nodes) if min_clients is None else min_clients,
            device=device,
            alerts=alerts,
            keep_uploads=keep_uploads,
            upload_bytes=upload_bytes,
            refresh_report=refresh_report,
            signing_key=signing_key,
        )
        self.retries = retries
        self.retry_wait = retry_wait
        self.node_timeout = node_timeout
        self.num_rounds = num_rounds
        self.identify = identify or self.federation.state_store.identify
        check_sampling(fraction_train, fraction_evaluate, min_train_nodes)
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
        self.layout: FlowerLayout | None = None
        self.pending_round: PendingRound | None = None
        self.evaluation = Evaluation()
        self.last_arrays: list[bytes] = []
        self.attempt = 0

    # --- settings ---------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the settings as a tree."""
        for line in settings_tree(self):
            log(INFO, "\t%s", line)

    def prepare(self, initial_arrays: ArrayRecord, num_rounds: int | None = None) -> ArrayRecord:
        """Lock the folder, restore the state and return the arrays to continue from.

        `start` and, if nobody else did, the first `configure_train` call it. Call it to resume in your own loop.
        """
        self.state_store.hold_lock()
        self.layout = self.federation.model.make_layout(FlowerLayout, initial_arrays)
        self.pending_round, self.last_arrays, self.attempt = None, [], 0
        names = ("fraction_train", "min_train_nodes", "weighted_by_key")
        settings = {name: getattr(self, name) for name in names}
        rounds = self.num_rounds if num_rounds is None else num_rounds
        model = self.federation.prepare(self.layout, rounds, settings)
        return initial_arrays if model is None else self._to_arrays(model)

    # --- a round ----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each selected node."""
        self.prepare_own_loop(server_round, arrays)
        nodes = self._wait_for_nodes(grid, self.fraction_train, self.min_train_nodes)
        timer = StageTimer()
        online = tuple(natural_sorted(nodes))
        with timer.timed("deliver"):
            self.live_server.register_clients(online, self._from_arrays(arrays))
            count = sample_size(len(nodes), self.fraction_train, self.min_train_nodes)
            selected = sample_clients(
                online, count, self.live_server.server.context.seed, server_round, self.attempt
            )
            server_messages = self.live_server.make_messages(selected)
            round_config = ConfigRecord({**config, "server-round": server_round})
            keys = (self.arrayrecord_key, self.configrecord_key)
            heads = self.state_store.head_updates(selected)
            messages = make_train_messages(
                self.prepared_layout, server_messages, nodes, round_config, keys, heads
            )
        log(INFO, "configure_train: %d of %d nodes", len(selected), len(online))
        sent = LiveRound(server_round, self.attempt, online, server_messages, timer)
        self.pending_round = PendingRound(sent, messages, time.perf_counter())
        return list(messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate, aggregate and save a round; return (None, None) if too few replies are usable."""
        pending = self.pending_round
        if pending is None or pending.sent.round_number != server_round:
            raise CelmError(f"round {server_round} was not configured by this strategy")
        self.pending_round = None
        timer = pending.sent.timer
        timer.seconds["wait"] = round(time.perf_counter() - pending.sent_at, 6)
        key, aggregate_fn = self.weighted_by_key, self.train_metrics_aggr_fn
        with timer.timed("validate"):
            validated = validate_replies(
                replies,
                pending.message_ids,
                self.prepared_layout,
                self.arrayrecord_key,
                key,
                pending.node_ids,
            )
        usable, invalid = len(validated.updates), len(validated.excluded)
        log(INFO, "aggregate_train: Received %d usable replies and %d failures", usable, invalid)
        closed = self.federation.close_round(
            pending.sent,
            validated,
            lambda clients: metrics.aggregate_metrics(
                {client: validated.contents[client] for client in clients}, key, aggregate_fn
            ),
        )
        if closed is None:
            return None, None
        step, aggregated = closed
        if not self.is_in_start:
            self.outputs.write_page()  # your own loop may have no evaluation
        values = metrics.to_metric_record(aggregated.values)
        if values is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", dict(values))
        log(DEBUG, "\t└──> Time: %s", timer.format_shares())
        return self._to_arrays(step.state.model), values

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages that send the global model to sampled nodes."""
        if not self.fraction_evaluate:
            return []
        nodes = self._wait_for_nodes(grid, self.fraction_evaluate, self.min_evaluate_nodes)
        count = sample_size(len(nodes), self.fraction_evaluate, self.min_evaluate_nodes)
        round_config = ConfigRecord({**config, "server-round": server_round})
        content = {self.arrayrecord_key: arrays, self.configrecord_key: round_config}
        selected = sample_clients(
            natural_sorted(nodes), count, self.live_server.server.context.seed, server_round
        )
        messages = make_evaluate_messages(content, selected, nodes, self.state_store.head_updates(selected))
        return self.evaluation.begin(server_round, messages)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of the reported metrics; replies that cannot be used are left out.

        In a wrapper's loop or your own, this also saves the evaluation. `start` adds the server's own and saves both.
        """
        key, aggregate_fn = self.weighted_by_key, self.evaluate_metrics_aggr_fn
        values = self.evaluation.aggregate(server_round, replies, key, aggregate_fn)
        self.save_own_loop_evaluation(server_round, values)
        return values

    # --- helpers ----------------------------------------------------------------------------------------------

    @property
    def is_prepared(self) -> bool:
        return self.layout is not None

    @property
    def prepared_layout(self) -> FlowerLayout:
        if self.layout is None:
            raise CelmError("no round was configured yet", "call configure_train before aggregate_train")
        return self.layout

    def _wait_for_nodes(self, grid: Grid, fraction: float, minimum: int) -> dict[str, int]:
        available, timeout = self.min_available_nodes, self.node_timeout
        return wait_for_enough_nodes(grid, self.identify, fraction, minimum, available, timeout)

    def _to_arrays(self, model: StateDict) -> ArrayRecord:
        arrays = self.prepared_layout.encode_state(model)
        self.last_arrays = [array.data for array in arrays.values()]
        return arrays

    def _from_arrays(self, arrays: ArrayRecord) -> StateDict:
        # The last aggregated model need not be decoded again. The user's own loop may pass other arrays.
        data = [array.data for array in arrays.values()]
        if len(data) == len(self.last_arrays) and all(map(operator.is_, data, self.last_arrays)):
            return self.live_server.current_state.model
        try:
            return self.prepared_layout.decode_state(arrays)
        except InvalidReplyError as invalid_reply:
            raise CelmError(f"global arrays do not fit the model: {invalid_reply}") from invalid_reply


class CelmStrategy(ContributionStrategy):
    """CELM: weights by class-wise contribution, estimated from the clients' models alone.

    Settings of the rule go into `rule_options`, as in `rule_options={"warmup": 5}`. All other parameters are those of
    `ContributionStrategy`. The preset `trust` is the default, because members of a live federation may cheat.
    """

    @fix_first_argument(ContributionStrategy.__init__, "celm")  # type: ignore[arg-type]  # `rule` goes by position
    def __init__(self) -> None: ...
