"""Memory in large pages, where Linux has them.

Training makes and drops tensors of megabytes in every step. In pages of 4 KiB much of that time goes to the kernel,
which hands out and clears each page; in pages of 2 MiB a round of the CNN takes two thirds of the time. PyTorch asks
for them if a variable says so, which it reads when it first needs memory, and which child processes inherit.
"""

from __future__ import annotations

import os

VARIABLE = "THP_MEM_ALLOC_ENABLE"


def use_large_pages() -> None:
    """For this process, if torch has made no tensor yet, and for those it starts; unless the user has set it."""
    os.environ.setdefault(VARIABLE, "1")
