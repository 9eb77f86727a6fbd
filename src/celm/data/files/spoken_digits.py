"""Recordings of the Free Spoken Digit Dataset as images: log-mel spectrograms of 32 bands x 32 frames, uint8.

    S = |FFT of 256 samples, Hann window, hop 64|^2        power per frame and frequency, at 8 kHz
    M = mel filters · S                                    32 triangles, equally spaced in mel = 2595 log10(1 + f / 700)
    pixel = 255 · clip(1 + 10 log10(M / max M) / 80, 0, 1)

The frames are interpolated linearly to 32, so that time is relative to the recording's length. Low bands are at the
bottom. The archive is read in place; nothing is extracted.
"""

from __future__ import annotations

import io
import re
import wave
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.text import single_line

SPECTROGRAM_SIZE = 32
_SAMPLE_RATE = 8000
_FFT_LENGTH = 256
_HOP = 64
_RANGE_DB = 80.0
_MAX_FILE_BYTES = 1_000_000
_RECORDING_NAME = re.compile(r"recordings/(\d)_([a-z]+)_(\d+)\.wav$")


def read_recordings(path: Path) -> dict[tuple[int, str, int], NDArray[np.uint8]]:
    """Return (digit, speaker, number) to the spectrogram `[32, 32]` of each recording in the archive, sorted."""
    try:
        with os_errors_as_celm_error(path, "read"), zipfile.ZipFile(path) as archive:
            members = {
                (int(match[1]), match[2], int(match[3])): info
                for info in archive.infolist()
                if (match := _RECORDING_NAME.search(info.filename))
            }
            spectrograms = {}
            for key, info in sorted(members.items()):
                if info.file_size > _MAX_FILE_BYTES:
                    raise CelmError(f"{path} is damaged: {info.filename} is too large")
                samples = _read_samples(f"{path}, {info.filename}", archive.read(info))
                spectrograms[key] = log_mel_image(samples)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CelmError(f"{path} is damaged: {single_line(str(error))}") from error
    if not spectrograms:
        raise CelmError(f"{path} is damaged: it has no recordings")
    return spectrograms


def _read_samples(source_name: str, content: bytes) -> NDArray[np.float64]:
    """Return the samples of a WAV file of 8 kHz, 16 bits and one channel."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            layout = (file.getframerate(), file.getsampwidth(), file.getnchannels())
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    except (wave.Error, EOFError, ValueError) as error:
        raise CelmError(f"{source_name} is damaged: {single_line(str(error))}") from error
    if layout != (_SAMPLE_RATE, 2, 1) or not len(samples):
        raise CelmError(f"{source_name} is damaged: it is not a recording of 8 kHz, 16 bits and one channel")
    return samples.astype(np.float64)


def log_mel_image(samples: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the log-mel spectrogram of a recording at 8 kHz as an image `[32, 32]`; silence is black."""
    padded = np.pad(samples, (0, max(0, _FFT_LENGTH - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT_LENGTH)[::_HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(_FFT_LENGTH))) ** 2
    mel = power @ mel_filters().T
    loudest = mel.max()
    if loudest == 0:
        return np.zeros((SPECTROGRAM_SIZE, SPECTROGRAM_SIZE), dtype=np.uint8)
    decibels = 10 * np.log10(np.maximum(mel / loudest, 1e-12))
    levels = np.clip(1 + decibels / _RANGE_DB, 0, 1)
    positions = np.linspace(0, len(levels) - 1, SPECTROGRAM_SIZE)
    bands = [np.interp(positions, np.arange(len(levels)), band) for band in levels.T]
    return np.round(255 * np.stack(bands[::-1])).astype(np.uint8)


def mel_filters() -> NDArray[np.float64]:
    """Return the triangular filters `[32, 129]`; each peaks at 1 where its neighbours start."""
    highest = 2595 * np.log10(1 + _SAMPLE_RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, SPECTROGRAM_SIZE + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(_FFT_LENGTH, 1 / _SAMPLE_RATE)
    low, centre, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    return np.maximum(0.0, np.minimum(rising, falling))
