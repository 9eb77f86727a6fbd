"""fluke: its FedAVG, with its own loader of tensors in memory (`FastDataLoader`) and no evaluation."""

from __future__ import annotations

import time
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import without_torchvision  # noqa: F401
from dealt import read_arguments
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver


class RoundTimes(FederationObserver):
    """Times at which round 1 begins and each round ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def start_round(self, round: int, global_model: Any) -> None:
        if not self.times:
            self.times.append(time.perf_counter())

    def end_round(self, round: int) -> None:
        self.times.append(time.perf_counter())


if __name__ == "__main__":
    data = read_arguments()
    settings = data.settings
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    labels = int(data.test[1].max()) + 1
    loaders = [
        FastDataLoader(
            *pair, num_labels=labels, batch_size=settings["batch"], shuffle=True, skip_singleton=False
        )
        for pair in data.clients
    ]
    container = DummyDataContainer(loaders, [None] * len(loaders), None, labels)
    hyper_parameters = DDict(
        model=data.model(),
        client=DDict(
            batch_size=settings["batch"],
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=settings["lr"]),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    )
    algorithm = FedAVG(len(loaders), DataSplitter(container), hyper_parameters)
    observer = RoundTimes()
    algorithm.set_callbacks([observer])
    algorithm.run(data.all_rounds, 1.0, finalize=False)
    seconds = [after - before for before, after in pairwise(observer.times)]
    data.report(seconds, algorithm.server.model, version=version("fluke-fl"))
