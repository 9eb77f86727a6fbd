"""Sensor windows of 30 people: the windows at hand, the official recordings, and damaged files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from celm.base.errors import CelmError
from celm.data import inventory
from celm.data.files.sensor_windows import SensorWindows, cut_windows
from celm.data.sources.hapt import Hapt, hold_out_windows
from support.dataset_files import HAPT_INTERVALS, write_hapt_archive

# Class and number of windows of these intervals, as they are in the windows at hand.
FIRST_WINDOWS = [(5, 14), (4, 11), (5, 14), (11, 3), (6, 11), (10, 2), (4, 13), (9, 1), (6, 13), (12, 1)]


def test_windows_of_the_official_intervals_are_those_at_hand(real_data: Path) -> None:
    arrays = np.load(real_data / "hapt" / "hapt_windows.npz")
    intervals = np.array([line.split() for line in HAPT_INTERVALS.splitlines()], dtype=np.int64)[:, 2:]
    starts, classes = cut_windows(intervals, 7000)
    assert classes.tolist() == [label for label, count in FIRST_WINDOWS for _ in range(count)]
    assert arrays["y"][: len(classes)].tolist() == classes.tolist()
    # Consecutive windows share half their samples exactly if their starts are 64 apart in one interval.
    x = arrays["x"][: len(classes)]
    shares_half = (x[:-1, :, 64:] == x[1:, :, :64]).all(axis=(1, 2))
    assert (shares_half >= ((np.diff(starts) == 64) & (np.diff(classes) == 0))).all()
    assert not shares_half[np.diff(starts) != 64].any()


def test_the_official_archive_is_cut_into_windows(empty_data_root: Path) -> None:
    signal = write_hapt_archive(empty_data_root / "hapt" / "hapt.zip")
    data = Hapt().load()
    assert len(data.train_labels) + len(data.test_labels) <= sum(count for _, count in FIRST_WINDOWS)
    assert set(data.client_ids or ()) == {"person-1"}
    first = signal[256 : 256 + 128].T.astype(np.float16).astype(np.float64)
    mean = np.array([0.8044, 0.0325, 0.0899, 0.0043, -0.001, -0.0092])[:, None]
    std = np.array([0.4122, 0.4035, 0.3468, 0.4192, 0.3952, 0.2729])[:, None]
    np.testing.assert_allclose(data.train_inputs[0].numpy(), (first - mean) / std, atol=1e-5)
    assert data.classes[int(data.train_labels[0])] == "standing"
    assert inventory.check_dataset("hapt").files[0].checksum is inventory.ChecksumStatus.BAD


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"RawData/labels.txt": None}, "no recordings with labels"),
        ({"RawData/gyro_exp01_user01.txt": None}, "no gyro_exp01_user01.txt"),
        ({"RawData/gyro_exp01_user01.txt": "1 2 3\n"}, "differ in length"),
        ({"RawData/acc_exp01_user01.txt": "1 2 x\n"}, "acc_exp01_user01.txt is damaged"),
        ({"RawData/labels.txt": "1 1 13 250 1232\n"}, "class outside 1 to 12"),
        ({"RawData/labels.txt": "1 1 5 0 90\n"}, "no label covers"),
    ],
)
def test_a_damaged_archive_is_one_line(
    empty_data_root: Path, changes: dict[str, str | None], reason: str
) -> None:
    write_hapt_archive(empty_data_root / "hapt" / "hapt.zip", changes)
    with pytest.raises(CelmError, match=reason):
        Hapt().load()


def test_damaged_windows_are_one_line(empty_data_root: Path) -> None:
    path = empty_data_root / "hapt" / "hapt_windows.npz"
    path.parent.mkdir()
    good = {"x": np.zeros((2, 6, 128)), "y": np.array([1, 12]), "client": np.array([1, 30])}
    for changes in ({"x": np.zeros((2, 6, 64))}, {"y": np.array([0, 1])}, {"client": np.array([1])},
                    {"x": np.full((2, 6, 128), np.nan)}, {"y": np.array([{}, 1], dtype=object)}):  # fmt: skip
        np.savez(path, **{**good, **changes})
        with pytest.raises(CelmError, match=r"hapt_windows\.npz is damaged"):
            Hapt().load()
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CelmError, match=r"hapt_windows\.npz is damaged"):
        Hapt().load()


def test_no_training_window_shares_a_sample_with_a_test_window() -> None:
    signal = np.random.RandomState(0).normal(size=(6, 64 * 31)).astype(np.float16)
    x = np.stack([signal[:, 64 * i : 64 * i + 128] for i in range(30)])
    windows = SensorWindows(x, np.repeat([1, 7], [20, 10]), np.ones(30, dtype=np.int64))
    train, test = hold_out_windows(windows)
    # By hand: rows 16 to 19 of the activity, and every fifth of the transition. Their neighbours are left out.
    assert test.tolist() == [16, 17, 18, 19, 24, 29]
    assert train.tolist() == [*range(15), 21, 22, 26, 27]


def test_real_hapt(real_data: Path) -> None:
    data = Hapt().load()
    assert data.shape == (6, 128)
    assert (len(data.train_labels), len(data.test_labels)) == Hapt.info.counts[0]
    assert set(Counter(data.client_ids)) == {f"person-{person}" for person in range(1, 31)}
    assert torch.bincount(data.test_labels, minlength=12).min() == 2
    assert data.train_inputs.mean(dim=(0, 2)).abs().max() < 0.05
    assert (data.train_inputs.std(dim=(0, 2)) - 1).abs().max() < 0.02
    report = inventory.check_dataset("hapt")
    assert report.ok
    assert [file.checksum for file in report.files] == [inventory.ChecksumStatus.OK]
