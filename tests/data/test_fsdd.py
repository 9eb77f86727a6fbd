"""Spoken digits of six speakers: the spectrogram of known sounds, the official archive, and damaged files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from celm.base.errors import CelmError
from celm.data import inventory
from celm.data.files.spoken_digits import log_mel_image, mel_filters
from celm.data.sources.fsdd import Fsdd
from support.dataset_files import tone, wav_bytes, write_fsdd_archive


@pytest.mark.parametrize("frequency", [200, 700, 1500, 3000])
def test_a_tone_is_brightest_in_the_band_of_its_frequency(frequency: float) -> None:
    image = log_mel_image(tone(frequency))
    # The band whose centre is nearest in mel: centres are at 1/33 to 32/33 of 2146 mel, the lowest band at the bottom.
    mel = 2595 * np.log10(1 + frequency / 700)
    expected = 33 * mel / (2595 * np.log10(1 + 4000 / 700)) - 1
    brightest = 31 - image.mean(axis=1).argmax()
    assert abs(brightest - expected) <= 1
    assert image.max() == 255


def test_time_runs_to_the_right_and_silence_is_black() -> None:
    image = log_mel_image(np.concatenate([tone(500), np.zeros(3200), tone(2500)]))
    assert image[:, 15].max() == 0
    assert image[16:, :8].max() > 250
    assert image[:16, 24:].max() > 250
    assert not log_mel_image(np.zeros(100)).any()


def test_neighbouring_filters_sum_to_one() -> None:
    # Each falling side is one minus the next rising side, between the first and the last centre.
    inner = mel_filters()[:, 4:120].sum(axis=0)
    np.testing.assert_allclose(inner, 1, atol=1e-9)


def test_the_official_archive_is_read_with_the_split_of_its_makers(empty_data_root: Path) -> None:
    write_fsdd_archive(empty_data_root / "fsdd" / "free-spoken-digit-dataset-1.0.10.zip")
    data = Fsdd().load()
    assert Counter(data.client_ids) == {"george": 4, "theo": 4}
    assert data.train_labels.tolist() == [0, 0, 0, 0, 9, 9, 9, 9]
    assert data.test_labels.tolist() == [0, 0, 0, 0, 9, 9, 9, 9]
    pixels = (data.train_inputs[0, 0] * 0.229 + 0.462) * 255
    np.testing.assert_allclose(pixels.numpy(), log_mel_image(tone(300).astype("<i2")), atol=0.01)
    assert not inventory.check_dataset("fsdd").ok


@pytest.mark.parametrize(
    ("recordings", "reason"),
    [
        ({}, "has no recordings"),
        ({"0_george_1.wav": b"RIFF"}, "0_george_1.wav is damaged"),
        ({"0_george_1.wav": wav_bytes(tone(300), rate=16000)}, "not a recording of 8 kHz"),
        ({"0_nobody_1.wav": wav_bytes(tone(300))}, "unknown speakers: nobody"),
    ],
)
def test_a_damaged_archive_is_one_line(
    empty_data_root: Path, recordings: dict[str, bytes], reason: str
) -> None:
    write_fsdd_archive(empty_data_root / "fsdd" / "free-spoken-digit-dataset-1.0.10.zip", recordings)
    with pytest.raises(CelmError, match=reason):
        Fsdd().load()


def test_real_fsdd(real_data: Path) -> None:
    data = Fsdd().load()
    assert (len(data.train_labels), len(data.test_labels)) == Fsdd.info.counts[0]
    speakers = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
    assert Counter(data.client_ids) == dict.fromkeys(speakers, 450)
    assert torch.bincount(data.test_labels).tolist() == [30] * 10
    assert abs(float(data.train_inputs.mean())) < 0.01
    assert abs(float(data.train_inputs.std()) - 1) < 0.01
    assert inventory.check_dataset("fsdd").ok
