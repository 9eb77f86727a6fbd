import signal

import pytest
import torch

from celm.base import processor
from celm.base.errors import CelmError


def test_a_process_that_dies_of_an_illegal_instruction_is_noticed() -> None:
    assert processor._survives("pass")
    assert not processor._survives(f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")


def test_bfloat16_on_a_processor_that_cannot_execute_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(processor, "_TRIAL", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    with pytest.raises(CelmError, match="bfloat16"):
        processor.check_bfloat16(torch.device("cpu"))
    processor.check_bfloat16(torch.device("cuda"))


def test_a_processor_without_amx_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(processor, "_survives", lambda code: pytest.fail("started a process"))
    processor.check_bfloat16(torch.device("cpu"))
