"""Large pages, by what the kernel counts: a page fault for each page that is first touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TOUCH = """
import resource
from celm.base.huge_pages import enable_huge_pages
enable_huge_pages()
import torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.empty(64 << 20, dtype=torch.uint8).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run(
        [sys.executable, "-c", TOUCH], env=environment | variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(
    not PAGES.exists() or "[madvise]" not in PAGES.read_text(),
    reason="Linux with large pages on request ([madvise]) only",
)
def test_large_tensors_take_few_page_faults_unless_the_user_says_otherwise() -> None:
    small = (64 << 20) // 4096
    assert faults() < small / 4
    assert faults(THP_MEM_ALLOC_ENABLE="0") > small / 2
