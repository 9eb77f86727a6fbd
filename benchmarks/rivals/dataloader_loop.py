"""The plain loop with a `DataLoader` for each client; `loader_workers` processes load its batches."""

from __future__ import annotations

from dealt import read_arguments
from plain import federate
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = read_arguments()
    loaders = [
        DataLoader(
            TensorDataset(*pair),
            batch_size=data.settings["batch"],
            shuffle=True,
            num_workers=data.settings["loader_workers"],
        )
        for pair in data.clients
    ]
    federate(data, [loader.__iter__ for loader in loaders])
