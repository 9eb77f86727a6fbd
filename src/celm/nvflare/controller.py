"""Contribution estimation as an NVFlare controller: any rule of celm, with unchanged client scripts.

In a round, each site gets a task with its own message. Results are validated, the server step runs, and the round is
saved. Rounds are numbered from 1 in the record, and from 0 in the messages, as NVFlare does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from logging import ERROR, INFO
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController
from torch import Tensor, nn

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.base.stage_timer import StageTimer
from celm.federation.round import sample_clients
from celm.live.client_metrics import AggregatedMetrics, aggregate_metrics
from celm.live.live_federation import LiveFederation, LiveRound
from celm.live.logger import log
from celm.live.metrics_log import MetricsLog
from celm.models.adapter_settings import AdapterSettings, OutputKind
from celm.models.state_dict import StateDict
from celm.nvflare.result_validation import NUM_STEPS, ValidatedResults, validate_results
from celm.nvflare.site_exchange import SiteExchange
from celm.nvflare.sites import SiteIdentities
from celm.nvflare.tensor_layout import TensorLayout
from celm.operations.alerts import Alert, Command, Webhook
from celm.rules import rules
from celm.rules.messages import ServerMessage

_FOLDER_IN_JOB = "celm"
"""The state folder in the run folder of a job, if no other one is given."""


class ContributionController(ModelController):  # type: ignore[misc]  # NVFlare has no types
    """Aggregate with the weights of a celm rule, and keep a record of contributions.

    The model and its initial values are those of the persistor, as with NVFlare's FedAvg. All arguments are plain
    values, because NVFlare writes them into the job's configuration.

    Parameters
    ----------
    input_shape, classes : the shape of one input, without the batch; the number of classes
    num_rounds : number of rounds
    rule, rule_options : a rule's name (`celm list rules`) and its settings, as in `{"warmup": 5}`
    min_clients : usable results that a round needs
    preset : "trust" guards against members that cheat (`celm.experiment.presets`); None is the rule as printed
    probe, filter, aggregator, head, layer, output, mean, std, local_heads : as in `celm.flower`
    seed : seed of the probe's noise and of the sampling of sites
    folder : where state and record are saved on the server. A job with the same folder continues after its last
        round. Without one, the record is in the job's result, and a killed server starts again
    fraction_train : fraction of the connected sites that train in a round
    train_timeout : seconds after which a round closes without the sites that did not answer
    use_certificates : whether the key of a site's certificate identifies it, if there are certificates; else its name
    retries, retry_wait : how often a round with too few usable results is repeated, and after how many seconds
    device : where the server computes weights and aggregates
    alerts : where events are sent, as in `[{"url": "https://..."}, {"arguments": ["mail-operator"]}]`
    keep_uploads, upload_bytes : of how many last rounds the uploads are kept in the folder; the bound on their size
    refresh_report : write report.html into the folder after each round
    persistor_id, task_name : NVFlare's component with the model; the task of the client script
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        num_rounds: int,
        rule: str = "celm",
        rule_options: Mapping[str, Any] | None = None,
        min_clients: int = 2,
        preset: str | None = "trust",
        probe: Mapping[str, Any] | str | None = None,
        filter: Mapping[str, Any] | str | None = None,
        aggregator: Mapping[str, Any] | str | None = None,
        head: str | None = None,
        layer: str | None = None,
        output: OutputKind | None = None,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        local_heads: int | None = None,
        seed: int = 42,
        folder: str | None = None,
        fraction_train: float = 1.0,
        train_timeout: int = 3600,
        use_certificates: bool = True,
        retries: int = 3,
        retry_wait: float = 10.0,
        device: str = "cpu",
        alerts: Sequence[Mapping[str, Any]] = (),
        keep_uploads: int = 0,
        upload_bytes: int = 10_000_000_000,
        refresh_report: bool = False,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        task_name: str = AppConstants.TASK_TRAIN,
    ) -> None:
        super().__init__(persistor_id=persistor_id)
        # NVFlare reads each argument from the attribute of this name when it writes the job.
        self.input_shape, self.classes, self.num_rounds = input_shape, classes, num_rounds
        self.rule, self.rule_options, self.min_clients, self.preset = rule, rule_options, min_clients, preset
        self.probe, self.filter, self.aggregator = probe, filter, aggregator
        self.head, self.layer, self.output = head, layer, output
        self.mean, self.std, self.local_heads, self.seed = mean, std, local_heads, seed
        self.folder, self.fraction_train, self.train_timeout = folder, fraction_train, train_timeout
        self.retries, self.retry_wait, self.device = retries, retry_wait, device
        self.use_certificates = use_certificates
        self.alerts, self.keep_uploads, self.upload_bytes = alerts, keep_uploads, upload_bytes
        self.refresh_report, self.persistor_id, self.task_name = refresh_report, persistor_id, task_name
        self._late_results: dict[str, str] = {}
        # The recipe builds the controller before the job is sent: what is wrong is refused here, not on the server.
        rules.build(rule, rule_options or {})
        make_alerts(alerts)
        _check_settings(fraction_train, train_timeout, folder)

    # --- the job ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the rounds of the job; continue after the last saved round of the folder."""
        try:
            federation = self._build_federation()
            try:
                with federation.state_store.lock():
                    self._run_rounds(federation)
            except Exception as error:
                federation.outputs.stop(error)
                raise
            finally:
                federation.outputs.close()
        except CelmError as error:
            log(ERROR, "%s", error)
            self.panic(str(error))

    def _run_rounds(self, federation: LiveFederation) -> None:
        layout, model = self._prepare(federation)
        identities = SiteIdentities(self.engine, self.use_certificates)
        evaluation_log = MetricsLog("evaluation")
        if federation.rounds_done:
            log(INFO, "Resuming after round %d", federation.rounds_done)
            self._save_model(layout, model, federation.rounds_done)
        for round_number in range(federation.rounds_done + 1, self.num_rounds + 1):
            log(INFO, "[ROUND %d/%d]", round_number, self.num_rounds)
            for attempt in range(self.retries + 1):
                sent, results = self._exchange(federation, layout, model, round_number, attempt, identities)
                if self.abort_signal.triggered:
                    log(INFO, "The job was aborted; %d rounds are saved", federation.rounds_done)
                    return
                self._save_evaluation(federation, round_number - 1, results, evaluation_log)
                closed = federation.close_round(sent, results, lambda clients: AggregatedMetrics())
                if closed is not None:
                    model = closed[0].state.model
                    break
                if attempt < self.retries:
                    time.sleep(self.retry_wait)
            else:
                raise federation.too_few_replies(round_number, self.retries + 1)
            federation.outputs.write_page()
            self._save_model(layout, model, round_number)
        for line in federation.table().splitlines():
            log(INFO, "%s", line)

    def _build_federation(self) -> LiveFederation:
        module = getattr(self.persistor, "model", None)
        if not isinstance(module, nn.Module):
            raise CelmError(
                "the controller has no PyTorch model",
                "use ContributionRecipe(model=...), or a PTFileModelPersistor with a model",
            )
        folder = self.folder or str(Path(self.get_run_dir()).absolute() / _FOLDER_IN_JOB)
        federation = LiveFederation.build(
            "nvflare",
            self.rule,
            module,
            tuple(self.input_shape),
            self.classes,
            rule_options=self.rule_options or {},
            preset=self.preset,
            probe=self.probe,
            probe_engine="local",
            filter=self.filter,
            aggregator=self.aggregator,
            head=self.head,
            partial=False,
            adapters=AdapterSettings(self.output, tuple(self.mean), tuple(self.std), layer=self.layer),
            local_heads=self.local_heads,
            validation=None,
            seed=self.seed,
            folder=folder,
            min_clients=self.min_clients,
            device=self.device,
            alerts=make_alerts(self.alerts),
            keep_uploads=self.keep_uploads,
            upload_bytes=self.upload_bytes,
            refresh_report=self.refresh_report,
        )
        extra = federation.live_server.server.rule.requirements.extra_exchange
        if extra:
            raise CelmError(
                f"rule '{self.rule}' needs more than models from clients: {extra}",
                "choose a rule that needs models only: celm list rules",
            )
        return federation

    def _prepare(self, federation: LiveFederation) -> tuple[TensorLayout, StateDict]:
        """Lock and restore the folder; return the layout of the messages and the model to continue from."""
        federation.state_store.hold_lock()
        initial = self.load_model()
        params: dict[str, Any] = {} if initial is None else dict(initial.params)
        layout = federation.model.make_layout(TensorLayout, params)
        if params and not any(isinstance(value, Tensor) for value in params.values()):
            layout = TensorLayout(layout.names, layout.reference, layout.aliases, as_numpy=True)
        settings = {"fraction_train": self.fraction_train, "weighted_by_key": NUM_STEPS}
        saved = federation.prepare(layout, self.num_rounds, settings)
        return layout, layout.decode_state(params) if saved is None else saved

    # --- a round ----------------------------------------------------------------------------------------------

    def _exchange(
        self,
        federation: LiveFederation,
        layout: TensorLayout,
        model: StateDict,
        round_number: int,
        attempt: int,
        identities: SiteIdentities,
    ) -> tuple[LiveRound, ValidatedResults]:
        """Send a model to each selected site; return the round and the validated results."""
        timer = StageTimer()
        with timer.timed("deliver"):
            clients = [
                client
                for client in self.engine.get_clients()
                if not self.get_client_disconnect_time(client.name)
            ]
            sites = federation.state_store.identify(identities.sites(clients))
            online = tuple(natural_sorted(sites))
            federation.live_server.register_clients(online, model)
            count = max(int(len(online) * self.fraction_train), min(self.min_clients, len(online)))
            selected = sample_clients(online, count, self.seed, round_number, attempt)
            messages = federation.live_server.make_messages(selected)
            contents = {
                str(sites[name]): self._make_task_content(layout, message, round_number)
                for name, message in messages.items()
            }
        log(INFO, "train: %d of %d sites", len(selected), len(online))
        exchange = SiteExchange(self._broadcast, self.cancel_task, self.train_timeout)
        with timer.timed("wait"):
            by_site = exchange.run(self.task_name, contents, lambda: bool(self.abort_signal.triggered))
        with timer.timed("validate"):
            by_client = {name: by_site[str(sites[name])] for name in messages}
            late_results, self._late_results = self._late_results, {}
            results = validate_results(by_client, messages, layout, list(late_results.values()))
        log(INFO, "Received %d usable results and %d failures", len(results.updates), len(results.excluded))
        return LiveRound(round_number, attempt, online, messages, timer), results

    def _make_task_content(
        self, layout: TensorLayout, message: ServerMessage, round_number: int
    ) -> Shareable:
        model = FLModel(
            params_type=ParamsType.FULL,
            params=layout.encode_state(message.model),
            current_round=round_number - 1,
            total_rounds=self.num_rounds,
        )
        return FLModelUtils.to_shareable(model)

    def _broadcast(self, **arguments: Any) -> None:
        self.broadcast(fl_ctx=self.fl_ctx, **arguments)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Note a result whose task has ended. NVFlare drops a second result of the same task by itself."""
        self._late_results[client.name] = f"{client.name} answers no task of this round"

    def _save_evaluation(
        self, federation: LiveFederation, round_number: int, results: ValidatedResults, log_: MetricsLog
    ) -> None:
        """Save what sites report about the model that they were sent, which is that of the round before."""
        is_saved = round_number in federation.state_store.evaluations
        if is_saved or all(isinstance(metrics, str) for metrics in results.metrics.values()):
            return
        aggregated = log_.update(aggregate_metrics(results.metrics, NUM_STEPS))
        others = {"excluded": dict(aggregated.excluded), "capped": dict(aggregated.capped)}
        federation.save_evaluation(round_number, aggregated.values, None, others)
        if aggregated.values is not None:
            log(INFO, "\t└──> evaluated by sites: %s", dict(aggregated.values))

    def _save_model(self, layout: TensorLayout, model: StateDict, round_number: int) -> None:
        """Save the global model with NVFlare's persistor, where its users expect it."""
        params = layout.encode_state(model)
        self.save_model(FLModel(params_type=ParamsType.FULL, params=params, current_round=round_number - 1))


def _check_settings(fraction_train: float, train_timeout: int, folder: str | None) -> None:
    if not 0 < fraction_train <= 1:
        raise CelmError(f"fraction_train must be above 0 and at most 1, not {fraction_train}")
    if not isinstance(train_timeout, int) or train_timeout < 1:
        raise CelmError(f"train_timeout must be a whole number of seconds, not {train_timeout!r}")
    if folder is not None and not Path(folder).is_absolute():
        raise CelmError(
            f"folder must be an absolute path on the server, not {folder!r}",
            "NVFlare chooses the working folder",
        )


def make_alerts(tables: Sequence[Mapping[str, Any]]) -> list[Alert]:
    """Return a `Webhook` for each table with `url`, and a `Command` for each with `arguments`."""
    alerts: list[Alert] = []
    for table in tables:
        kind: Any = Webhook if isinstance(table, Mapping) and "url" in table else Command
        try:
            alerts.append(kind(**table))
        except TypeError as error:
            raise CelmError(
                f"alerts: {table!r} is not an alert", 'use {"url": "https://..."} or {"arguments": [...]}'
            ) from error
    return alerts
