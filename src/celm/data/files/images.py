"""Encoded images (PNG, JPEG, WebP) to bytes `[c, h, w]`; a corrupt or monstrous one is a line that names it.

One thread: pillow gives up the GIL only inside the codec, and for images this small the hand-overs cost more
than they gain (measured: 60,000 WebP of 32x32 take 6 s on one thread, 10 s on two).
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from celm.base.errors import CelmError

FORMATS = ("PNG", "JPEG", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
MOST_PIXELS = 50_000_000
"""A header that claims more is refused before anything is decoded."""
BROKEN = (
    OSError,
    ValueError,
    SyntaxError,
    struct.error,
    EOFError,
    MemoryError,
    IndexError,
    KeyError,
    TypeError,
)
"""What pillow's codecs raise on corrupt input."""

Channels = Literal[1, 3]


def decode(content: bytes, where: str, channels: Channels, size: int | None = None) -> NDArray[np.uint8]:
    """One image as `[c, h, w]`, squashed to `size` x `size` where a size is given."""
    try:
        # Pillow warns about odd metadata; the pixels are checked here, the metadata is not used.
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(content), formats=FORMATS) as image,
        ):
            if image.width * image.height > MOST_PIXELS:
                raise CelmError(f"{where}: an image of {image.width} x {image.height} pixels is too large")
            if image.mode.startswith(("I", "F")):
                raise CelmError(
                    f"{where}: only images of 8 bits per channel can be read, not mode {image.mode}"
                )
            plain: Image.Image = image.convert("L" if channels == 1 else "RGB")
            if size is not None and plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain, dtype=np.uint8)
    except UnidentifiedImageError as error:
        raise CelmError(f"{where} is not a PNG, JPEG or WebP image") from error
    except Image.DecompressionBombError as error:
        raise CelmError(f"{where}: the image is too large") from error
    except BROKEN as error:
        raise CelmError(f"{where} is a corrupt image ({' '.join(str(error).split())})") from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_all(
    contents: Iterable[tuple[str, bytes]], count: int, channels: Channels, size: int | None = None
) -> Tensor:
    """`count` images, each with the words that name it in errors, as one uint8 `[n, c, h, w]`."""
    stacked: NDArray[np.uint8] | None = None
    for row, (where, content) in enumerate(contents):
        pixels = decode(content, where, channels, size)
        if stacked is None:
            stacked = np.empty((count, *pixels.shape), dtype=np.uint8)
        if pixels.shape != stacked.shape[1:]:
            found, first = pixels.shape[1:], stacked.shape[2:]
            raise CelmError(
                f"{where} is {found[1]} x {found[0]} pixels, the images before it {first[1]} x {first[0]}",
                "give a size to resize all images to",
            )
        stacked[row] = pixels
    if stacked is None:
        raise CelmError("there are no images to decode")
    return torch.from_numpy(stacked)
