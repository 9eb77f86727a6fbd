"""A job with `ContributionController`, in the style of NVFlare's own recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat, TransferType
from torch import nn

from celm.base.errors import CelmError
from celm.nvflare.controller import ContributionController


class ContributionRecipe(FedAvgRecipe):  # type: ignore[misc]  # NVFlare has no types
    """A recipe that estimates what each site contributes, in place of NVFlare's `FedAvgRecipe`.

    Parameters
    ----------
    model : the module that sites train, or `{"class_path": "net.Net", "args": {}}`. NVFlare builds it anew on the
        server from its class and constructor arguments; values come from `initial_ckpt`
    input_shape, classes : the shape of one input, without the batch; the number of classes
    min_clients : sites that the job needs to start, and usable results that a round needs
    num_rounds, train_script, train_args, initial_ckpt : as in NVFlare's `FedAvgRecipe`
    rule, folder, preset : see `ContributionController`
    controller_options : further settings of `ContributionController`, as in `{"seed": 7, "refresh_report": True}`
    server_expected_format : "pytorch" sends tensors as they are; "numpy" converts them, as NVFlare's recipes do
    params_transfer_type : whether client scripts return whole models or differences
    launch_external_process, command, launch_once, launch_timeout, shutdown_timeout : as in `FedAvgRecipe`
    """

    def __init__(
        self,
        *,
        name: str = "contributions",
        model: nn.Module | Mapping[str, Any],
        input_shape: Sequence[int],
        classes: int,
        min_clients: int,
        num_rounds: int = 2,
        train_script: str,
        train_args: str = "",
        initial_ckpt: str | None = None,
        rule: str = "celm",
        folder: str | None = None,
        preset: str | None = "trust",
        controller_options: Mapping[str, Any] | None = None,
        server_expected_format: ExchangeFormat = ExchangeFormat.PYTORCH,
        params_transfer_type: TransferType = TransferType.FULL,
        launch_external_process: bool = False,
        command: str = "python3 -u",
        launch_once: bool = True,
        launch_timeout: float | None = 300.0,
        shutdown_timeout: float = 0.0,
    ) -> None:
        self._controller_settings = {
            **(controller_options or {}),
            "input_shape": list(input_shape),
            "classes": classes,
            "num_rounds": num_rounds,
            "min_clients": min_clients,
            "rule": rule,
            "folder": folder,
            "preset": preset,
        }
        super().__init__(
            name=name,
            model=dict(model) if isinstance(model, Mapping) else model,
            initial_ckpt=initial_ckpt,
            min_clients=min_clients,
            num_rounds=num_rounds,
            train_script=train_script,
            train_args=train_args,
            launch_external_process=launch_external_process,
            command=command,
            server_expected_format=server_expected_format,
            params_transfer_type=params_transfer_type,
            launch_once=launch_once,
            launch_timeout=launch_timeout,
            shutdown_timeout=shutdown_timeout,
        )

    def _create_controller(
        self, persistor_id: str, model_params: Any, model_aggregator: Any
    ) -> ContributionController:
        """Return the controller of the job. NVFlare's `FedAvgRecipe` calls this while it builds the job."""
        try:
            return ContributionController(**self._controller_settings, persistor_id=persistor_id)
        except TypeError as error:
            raise CelmError(f"controller_options: {error}") from error
