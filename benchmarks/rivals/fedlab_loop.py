"""FedLab: its FedAvg handler and serial trainer in its standalone pipeline.

It takes batches from a `DataLoader`. This one fetches a whole batch by one index, which is its fastest form.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from itertools import pairwise

import without_torchvision  # noqa: F401
from dealt import RivalData, read_arguments
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import BatchSampler, DataLoader, RandomSampler


class InMemoryDataset(FedDataset):
    def __init__(self, data: RivalData) -> None:
        super().__init__()
        self.num = len(data.clients)
        self.parts = [BaseDataset(*pair) for pair in data.clients]

    def get_dataset(self, id: int, type: str = "train") -> BaseDataset:
        return self.parts[id]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        part = self.parts[id]
        return DataLoader(
            part, sampler=BatchSampler(RandomSampler(part), batch_size, drop_last=False), batch_size=None
        )


class TimedPipeline(StandalonePipeline):
    """Pipeline that records the time instead of evaluating."""

    def main(self) -> list[float]:
        self.ends = [time.perf_counter()]
        super().main()
        return [after - before for before, after in pairwise(self.ends)]

    def evaluate(self) -> None:
        self.ends.append(time.perf_counter())


if __name__ == "__main__":
    data = read_arguments()
    handler = FedAvgServerHandler(data.model(), data.all_rounds, sample_ratio=1.0)
    trainer = FedAvgSerialClientTrainer(data.model(), len(data.clients))
    trainer.setup_dataset(InMemoryDataset(data))
    trainer.setup_optim(1, data.settings["batch"], data.settings["lr"])
    seconds = TimedPipeline(handler, trainer).main()
    data.report(seconds, handler.model, version=version("fedlab"))
