"""Randomness as a function of (seed, purpose, round, client), never of global state or arrival order.

    stream = BLAKE2b(seed / purpose / key / key ...) mod 2^63

So a run that is killed and resumed, or spread over any number of workers, draws the same numbers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """Return the 63-bit seed of one purpose and its keys, such as the round number and the client.

    >>> derive_seed(42, "batches", 3, "client-0") == derive_seed(42, "batches", 3, "client-0")
    True
    >>> derive_seed(42, "batches", 3, "client-0") == derive_seed(42, "batches", 30, "client-0")
    False
    """
    # Each part carries its type and length, so that (1, "23") and (12, "3") give different streams.
    parts = [
        f"str:{len(part)}:{part}" if isinstance(part, str) else f"int:{len(str(int(part)))}:{int(part)}"
        for part in (seed, purpose, *keys)
    ]
    # A client may be named after a file whose name is not UTF-8.
    text = "/".join(parts).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def make_generator(seed: int, purpose: str, *keys: int | str) -> torch.Generator:
    """Return a CPU generator seeded by `derive_seed`; draws on the CPU do not depend on the training device."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, purpose, *keys))
