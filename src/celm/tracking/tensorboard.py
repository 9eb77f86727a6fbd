"""Write event files for TensorBoard (`tensorboard --logdir DIR`). Summary and settings are in its HParams tab."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from celm.tracking import Scalar, run_id


class TensorBoardLogger:
    """The event files of one run."""

    def __init__(self, destination: Path, last_round: int) -> None:
        # Discard metrics that a resumed run had logged after its last checkpoint.
        self._writer = SummaryWriter(str(destination), purge_step=last_round + 1 if last_round else None)

    def log_round(self, round_number: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round_number)
        self._writer.flush()

    def log_summary(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None:
        self._writer.add_hparams(dict(settings), dict(summary), run_name=".")

    def close(self) -> None:
        self._writer.close()


def open_logger(destination: str, folder: Path, last_round: int) -> TensorBoardLogger:
    """Open the logger of the run in `folder`. The id distinguishes equal names in several comparisons."""
    return TensorBoardLogger(Path(destination) / f"{folder.name}-{run_id(folder)[:6]}", last_round)
