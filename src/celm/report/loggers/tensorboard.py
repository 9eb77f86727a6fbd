"""Event files for TensorBoard: `tensorboard --logdir DIR`; settings and summary are in its HParams tab."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from celm.report.loggers import Scalar, identity


class TensorBoard:
    def __init__(self, place: Path, after: int) -> None:
        # Of a run that is resumed, what was logged beyond its last round does not count.
        self.writer = SummaryWriter(str(place), purge_step=after + 1 if after else None)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, number)
        self.writer.flush()

    def end(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None:
        self.writer.add_hparams(dict(settings), dict(summary), run_name=".")

    def close(self) -> None:
        self.writer.close()


def open(place: str, folder: Path, after: int) -> TensorBoard:
    # Runs of several comparisons have the same names.
    return TensorBoard(Path(place) / f"{folder.name}-{identity(folder)[:6]}", after)
