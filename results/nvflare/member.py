"""The client script of all jobs. With `--fedce` it also does what NVFlare's FedCE asks of a client."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nvflare.client as flare
import torch
from net import Net
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_opt.pt.fedce import PTFedCEHelper
from split import make_federation
from torch import Tensor, nn

from celm.federation.client_trainer import ClientTask
from celm.rules.messages import ServerMessage


def accuracy(module: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((module(inputs).argmax(dim=1) == labels).double().mean())


def num_bytes(params: dict[str, Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in params.values())


def main() -> None:
    torch.set_num_threads(1)
    sent_file, fedce = Path(sys.argv[1]), "--fedce" in sys.argv
    flare.init()
    site = flare.get_site_name()
    federation = make_federation()
    trainer = federation.trainer
    data = trainer.client_data[site]
    validation = trainer.inputs[data.validation_rows], data.validation_labels
    previous: dict[str, Tensor] | None = None
    while flare.is_running():
        received = flare.receive()
        number = received.current_round + 1
        task = ClientTask(
            site, number, federation.experiment.train.lr_at(number), ServerMessage(received.params)
        )
        update = trainer.train(task).update
        module = Net()
        module.load_state_dict(received.params)
        extra: dict[str, float] = {}
        if fedce:
            without_it = module
            if previous is not None:
                weight = PTFedCEHelper.get_contribution_weight(received, site)
                without_it = PTFedCEHelper.make_minus_model(module, previous, weight)
            extra["fedce_minus_val"] = 1.0 - accuracy(without_it, *validation)
        previous = dict(update.model)
        if fedce:
            params: dict[str, Any] = {
                name: update.model[name] - received.params[name] for name in update.model
            }
        else:
            params = dict(update.model)
        result = FLModel(
            params_type="DIFF" if fedce else "FULL",
            params=params,
            meta={"NUM_STEPS_CURRENT_ROUND": update.num_examples, **extra},
        )
        line = {
            "site": site,
            "round": number,
            "received_bytes": num_bytes(received.params),
            "sent_bytes": num_bytes(params),
            "scores": extra,
            "coefficients": (received.meta or {}).get("fedce_coef"),
        }
        with sent_file.open("a") as file:  # one short line, which a local file appends whole
            file.write(json.dumps(line) + "\n")
        flare.send(result)


if __name__ == "__main__":
    main()
