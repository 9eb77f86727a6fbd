"""Log an offline run of Weights & Biases to `DIR/wandb`. No data leave the machine before `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import wandb

from celm.tracking import Scalar, run_id


class WandbLogger:
    """An offline run."""

    def __init__(self, destination: Path, folder: Path) -> None:
        destination.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project="celm",
            name=folder.name,
            # A resumed run keeps its id, so that `wandb sync` joins its parts.
            id=run_id(folder),
            resume="allow",
            dir=str(destination),
            mode="offline",
            settings=wandb.Settings(silent=True),
        )

    def log_round(self, round_number: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=round_number)

    def log_summary(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)
        self._run.summary.update(dict(summary))

    def close(self) -> None:
        self._run.finish()


def open_logger(destination: str, folder: Path, last_round: int) -> WandbLogger:
    """Open the logger of the run in `folder`."""
    return WandbLogger(Path(destination), folder)
