"""FedLab: its FedAvg handler and serial trainer in its standalone pipeline.

It takes batches from a `DataLoader`; this one fetches a whole batch of tensors by one index, as fast as it goes.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from itertools import pairwise

import without_torchvision  # noqa: F401
from dealt import Dealt, given
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import BatchSampler, DataLoader, RandomSampler


class InMemory(FedDataset):
    def __init__(self, dealt: Dealt) -> None:
        super().__init__()
        self.num = len(dealt.clients)
        self.parts = [BaseDataset(*pair) for pair in dealt.clients]

    def get_dataset(self, id: int, type: str = "train") -> BaseDataset:
        return self.parts[id]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        part = self.parts[id]
        return DataLoader(
            part, sampler=BatchSampler(RandomSampler(part), batch_size, drop_last=False), batch_size=None
        )


class Timed(StandalonePipeline):
    """Notes the time where the pipeline would evaluate."""

    def main(self) -> list[float]:
        self.ends = [time.perf_counter()]
        super().main()
        return [after - before for before, after in pairwise(self.ends)]

    def evaluate(self) -> None:
        self.ends.append(time.perf_counter())


if __name__ == "__main__":
    dealt = given()
    handler = FedAvgServerHandler(dealt.model(), dealt.all_rounds, sample_ratio=1.0)
    trainer = FedAvgSerialClientTrainer(dealt.model(), len(dealt.clients))
    trainer.setup_dataset(InMemory(dealt))
    trainer.setup_optim(1, dealt.settings["batch"], dealt.settings["lr"])
    seconds = Timed(handler, trainer).main()
    dealt.report(seconds, handler.model, version=version("fedlab"))
