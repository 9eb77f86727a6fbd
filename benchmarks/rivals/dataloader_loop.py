"""The plain loop with a `DataLoader` for each client; `loader_workers` processes load its batches."""

from __future__ import annotations

from dealt import given
from plain import federate
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    dealt = given()
    loaders = [
        DataLoader(
            TensorDataset(*pair),
            batch_size=dealt.settings["batch"],
            shuffle=True,
            num_workers=dealt.settings["loader_workers"],
        )
        for pair in dealt.clients
    ]
    federate(dealt, [loader.__iter__ for loader in loaders])
