"""A site that trains as the local engine does. `--bad` lets some sites misbehave."""

from __future__ import annotations

import os
import signal
import sys

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from celm.federation.build import build_federation, resolve_defaults
from celm.federation.client_trainer import ClientTask
from celm.rules.messages import ServerMessage
from experiment import experiment

torch.set_num_threads(1)
flare.init()
site = flare.get_site_name()
federation = build_federation(resolve_defaults(experiment()))
while flare.is_running():
    received = flare.receive()
    number = received.current_round + 1
    task = ClientTask(site, number, federation.experiment.train.lr_at(number), ServerMessage(received.params))
    update = federation.trainer.train(task).update
    model = dict(update.model)
    if "--bad" in sys.argv:
        if site == "client-0" or (site == "client-2" and number == 4):
            model["head.bias"] = model["head.bias"] * float("nan")
        if site == "client-1":
            del model["head.bias"]
        if site == "client-3" and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    accuracy = {"accuracy": 0.5}
    flare.send(FLModel(params=model, metrics=accuracy, meta={"NUM_STEPS_CURRENT_ROUND": update.num_examples}))
