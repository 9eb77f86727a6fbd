"""Checks for processor faults that would end the process without an error."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import torch

from celm.base.errors import CelmError

_TRIAL = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def check_bfloat16(device: torch.device) -> None:
    """Raise an error unless this machine can multiply bfloat16 matrices.

    Some virtual machines announce AMX but do not execute it: the first product ends the process (SIGILL).
    """
    announces_amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    if device.type == "cpu" and announces_amx() and not _survives(_TRIAL):
        raise CelmError(
            "precision bfloat16: this machine announces AMX instructions and cannot execute them",
            "set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, or use float32",
        )


@cache
def _survives(code: str) -> bool:
    """Run Python code in another process, once; return whether it ended normally."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
