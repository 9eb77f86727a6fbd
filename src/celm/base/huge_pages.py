"""Huge memory pages for tensors, on Linux.

Training allocates and frees tensors of megabytes in every step. With pages of 4 KiB the kernel spends much time on
handing out and clearing pages. With pages of 2 MiB a round of the CNN takes two thirds of the time. PyTorch requests
huge pages if an environment variable is set. It reads the variable at its first allocation; child processes inherit it.
"""

from __future__ import annotations

import os

THP_VARIABLE = "THP_MEM_ALLOC_ENABLE"


def enable_huge_pages() -> None:
    """Make PyTorch request huge pages in this process and its children, unless the user has set the variable.

    This has no effect on the current process if torch has already allocated a tensor.
    """
    os.environ.setdefault(THP_VARIABLE, "1")
