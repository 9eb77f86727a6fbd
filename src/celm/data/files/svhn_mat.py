"""The MATLAB files of SVHN: `X` uint8 `[32, 32, 3, n]` and `y` `[n, 1]`, in which 10 is the digit 0."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.text import single_line

_ERRORS = (ValueError, TypeError, NotImplementedError, KeyError, EOFError, zlib.error, MemoryError)
"""Errors of scipy on a damaged file."""


def read_svhn(path: Path) -> tuple[Tensor, Tensor]:
    """Return images uint8 `[n, 3, 32, 32]` and labels `[n]`, 0 to 9."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        with os_errors_as_celm_error(path, "read"), path.open("rb") as file:
            content = loadmat(file, variable_names=("X", "y"))
        images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
    except (MatReadError, *_ERRORS) as error:
        raise CelmError(f"{path} is damaged: {single_line(str(error))}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise CelmError(f"{path} is damaged: X is {images.dtype} {images.shape}, not uint8 (32, 32, 3, n)")
    if labels.dtype.kind not in "iu" or images.shape[3] != len(labels):
        raise CelmError(f"{path} is damaged: {images.shape[3]} images but {len(labels)} integer labels")
    digits = labels.astype(np.int64)
    digits[digits == 10] = 0
    return torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1))), torch.from_numpy(digits)
