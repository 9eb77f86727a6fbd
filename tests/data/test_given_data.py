"""Data given as objects: what cannot be used is one line that says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import celm
from celm.base.errors import CelmError

ROWS = 12
X: NDArray[np.float32] = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
Y = np.arange(ROWS) % 2


class Stream(torch.utils.data.IterableDataset[Any]):
    """A torch dataset without length."""

    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


class Broken(torch.utils.data.Dataset[Any]):
    """A torch dataset whose samples cannot be read."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        raise OSError("the disk\nis gone")


def owned_by(*clients: Any) -> dict[str, Any]:
    return {"train": (X, Y), "clients": [*clients, *["south"] * (ROWS - len(clients))]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (owned_by(""), "unusable client name"),
        (owned_by("north\nsouth"), "unusable client name"),
        (owned_by("n" * 101), "unusable client name"),
        (owned_by(None), "a name or a number in each row, not None"),
        (owned_by(float("nan")), "a name or a number in each row, not nan"),
        ((X, ["a", 1] * (ROWS // 2)), "mix texts and numbers"),
        (Stream(), "Stream has no length"),
        (Broken(), "cannot be read: OSError: the disk is gone"),
        ({"x": X, "y": Y}, r"'dataset\.x'.*give data as \(x, y\)"),
    ],
)
def test_unusable_data_are_one_line(data: Any, reason: str) -> None:
    with pytest.raises(CelmError, match=reason) as caught:
        celm.Experiment(dataset=data)
    assert "\n" not in str(caught.value)


def test_clients_may_be_unicode_or_numbers_of_numpy() -> None:
    for clients, names in (
        (["Zürich 🏥"] * 6 + ["東京"] * 6, ["Zürich 🏥", "東京"]),
        (np.repeat([1, 2], 6), ["client-1", "client-2"]),
        (torch.tensor([1, 2]).repeat_interleave(6), ["client-1", "client-2"]),
    ):
        experiment = celm.Experiment(dataset={"train": (X, Y), "clients": clients})
        dataset = celm.data.registry.datasets.build("arrays", {}, experiment.dataset.object).load()
        assert sorted(set(dataset.client_ids or ())) == names


def test_numbers_of_numpy_are_settings() -> None:
    experiment = celm.Experiment(rounds=np.int64(3), split={"name": "dirichlet", "alpha": np.float64(0.5)})
    assert (experiment.run.rounds, experiment.split.options) == (3, {"alpha": 0.5})
