"""An offline run of Weights & Biases, in `DIR/wandb`; nothing leaves the machine before `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import wandb

from celm.report.loggers import Scalar, identity


class Wandb:
    def __init__(self, place: Path, folder: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project="celm",
            name=folder.name,
            # A run that is resumed keeps its identity, so that its parts are one when they are synced.
            id=identity(folder),
            resume="allow",
            dir=str(place),
            mode="offline",
            settings=wandb.Settings(silent=True),
        )

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=number)

    def end(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None:
        self.run.config.update(dict(settings), allow_val_change=True)
        self.run.summary.update(dict(summary))

    def close(self) -> None:
        self.run.finish()


def open(place: str, folder: Path, after: int) -> Wandb:
    return Wandb(Path(place), folder)
