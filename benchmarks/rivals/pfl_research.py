"""Apple's pfl-research: its FedAvg on its simulated backend, users as tensors in memory.

Its batches are views that it creates once, always in the same order. Unlike the others, it neither shuffles nor
gathers. With `python -m torch.distributed.run`, it distributes the users among the processes.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from dealt import read_arguments
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class PflNetwork(nn.Module):
    """A model with the two methods that pfl requires."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return the loss. pfl calls this in the warm-up round only."""
        return {"loss": Weighted(float(self.loss(inputs, labels)) * len(labels), len(labels))}


class RoundEnds(TrainingProcessCallback):
    """Times at which training begins and each round ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.times.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    data = read_arguments()
    np.random.seed(0)
    users = {str(i): PyTorchTensorDataset(pair, user_id=str(i)) for i, pair in enumerate(data.clients)}
    sampler = get_user_sampler("minimize_reuse", list(users))
    dataset = FederatedDataset(users.__getitem__, sampler)
    network = PflNetwork(data.model())
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    parameters = NNAlgorithmParams(
        central_num_iterations=data.all_rounds,
        evaluation_frequency=10**9,
        train_cohort_size=len(users),
        val_cohort_size=0,
    )
    training = NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=data.settings["lr"],
        local_batch_size=data.settings["batch"],
    )
    ends = RoundEnds()
    backend = SimulatedBackend(dataset, dataset)
    FederatedAveraging().run(parameters, backend, model, training, callbacks=[ends])
    seconds = [after - before for before, after in pairwise(ends.times)]
    if pytorch_ops.distributed.global_rank == 0:
        note = "batches are cut once, and neither shuffled nor gathered"
        data.report(seconds, network.network, version=version("pfl"), note=note)


if __name__ == "__main__":
    main()
