"""Decoding of PNG, JPEG and WebP images to `[c, h, w]`. A corrupt or too large image is an error that names it.

Images are decoded in one thread. Pillow releases the GIL only inside the codec, so for small images a second thread
costs more than it gains. 60,000 WebP images of 32x32 take 6 s in one thread and 10 s in two.
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
from celm.base.text import single_line

_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_MAX_PIXELS = 50_000_000
"""Pixel limit of an image. An image whose header claims more is refused before it is decoded."""
_DECODE_ERRORS = (
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
"""Errors that pillow's codecs raise on corrupt input."""

Channels = Literal[1, 3]


def decode_image(
    content: bytes, source_name: str, channels: Channels, size: int | None = None
) -> NDArray[np.uint8]:
    """Return one image as uint8 `[c, h, w]`, resized to `size` x `size` if given; errors call it `source_name`."""
    try:
        # Pillow warns about unusual metadata, which is not used.
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(content), formats=_IMAGE_FORMATS) as image,
        ):
            if image.width * image.height > _MAX_PIXELS:
                raise CelmError(
                    f"{source_name}: an image of {image.width} x {image.height} pixels is too large"
                )
            if image.mode.startswith(("I", "F")):
                raise CelmError(
                    f"{source_name}: only images of 8 bits per channel can be read, not mode {image.mode}"
                )
            converted: Image.Image = image.convert("L" if channels == 1 else "RGB")
            if size is not None and converted.size != (size, size):
                converted = converted.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(converted, dtype=np.uint8)
    except UnidentifiedImageError as error:
        raise CelmError(f"{source_name} is not a PNG, JPEG or WebP image") from error
    except Image.DecompressionBombError as error:
        raise CelmError(f"{source_name}: the image is too large") from error
    except _DECODE_ERRORS as error:
        raise CelmError(f"{source_name} is a corrupt image ({single_line(str(error))})") from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_images(
    contents: Iterable[tuple[str, bytes]], count: int, channels: Channels, size: int | None = None
) -> Tensor:
    """Return `count` images as one uint8 tensor `[n, c, h, w]`; `contents` yields (name for errors, bytes)."""
    stacked: NDArray[np.uint8] | None = None
    for row, (source_name, content) in enumerate(contents):
        pixels = decode_image(content, source_name, channels, size)
        if stacked is None:
            stacked = np.empty((count, *pixels.shape), dtype=np.uint8)
        if pixels.shape != stacked.shape[1:]:
            actual, expected = pixels.shape[1:], stacked.shape[2:]
            raise CelmError(
                f"{source_name} is {actual[1]} x {actual[0]} pixels, "
                f"but the images before it are {expected[1]} x {expected[0]}",
                "set a size to which all images are resized",
            )
        stacked[row] = pixels
    if stacked is None:
        raise CelmError("there are no images to decode")
    return torch.from_numpy(stacked)
