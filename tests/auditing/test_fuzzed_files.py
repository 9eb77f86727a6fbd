"""Files with random damage: each is read as tensors or refused in one line.

300 cases of each kind; the environment variable CELM_FUZZ sets another number.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from auditing.conftest import random_state, rewritten
from celm.auditing.checkpoint_reader import parse_checkpoint
from celm.base.errors import CelmError
from celm.models.state_matching import match_state

CASES = int(os.environ.get("CELM_FUZZ", "300"))
LARGEST = 1 << 20
REFERENCE = random_state(0)


def pytorch() -> bytes:
    content = io.BytesIO()
    torch.save(random_state(1), content)
    return content.getvalue()


def arrays() -> bytes:
    content = io.BytesIO()
    np.savez(content, **{name: tensor.numpy() for name, tensor in random_state(1).items()})  # type: ignore[arg-type]
    return content.getvalue()


VALID = {".safetensors": save(random_state(1)), ".pt": pytorch(), ".npz": arrays()}

damage = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("repeat"), st.floats(0, 1), st.integers(1, 64)),
)


def damaged(content: bytes, acts: list[tuple[str, float, int | bytes]]) -> bytes:
    for act, where, what in acts:
        at = int(where * len(content))
        if act == "flip" and content:
            content = content[:at] + bytes([int(what)]) + content[at + 1 :]  # type: ignore[arg-type]
        elif act == "cut":
            content = content[:at]
        elif act == "insert":
            content = content[:at] + bytes(what) + content[at:]  # type: ignore[arg-type]
        elif act == "repeat":
            content = content[:at] + content[max(0, at - int(what)) :]  # type: ignore[arg-type]
    return content


def read(content: bytes, suffix: str) -> dict[str, Tensor] | None:
    try:
        return match_state(parse_checkpoint(content, suffix, LARGEST), REFERENCE, {}, {}).state
    except CelmError as error:
        reason = str(error)
    assert len(reason) < 600
    assert reason.isprintable()
    return None


@pytest.mark.parametrize("suffix", VALID)
def test_undamaged_files_are_read(suffix: str) -> None:
    state = read(VALID[suffix], suffix)
    assert state is not None
    assert all(torch.equal(state[name], tensor) for name, tensor in random_state(1).items())


@pytest.mark.parametrize("suffix", VALID)
@given(acts=st.lists(damage, min_size=1, max_size=4))
@settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_damaged_files_are_read_or_refused(suffix: str, acts: list[tuple[str, float, int | bytes]]) -> None:
    state = read(damaged(VALID[suffix], acts), suffix)
    if state is not None:
        assert {name: tensor.shape for name, tensor in state.items()} == {
            name: tensor.shape for name, tensor in REFERENCE.items()
        }
        assert all(bool(tensor.isfinite().all()) for tensor in state.values())


@pytest.mark.parametrize("suffix", VALID)
@given(content=st.binary(max_size=200))
@settings(max_examples=CASES, deadline=None, derandomize=True)
def test_random_bytes_are_refused(suffix: str, content: bytes) -> None:
    assert read(content, suffix) is None


def test_an_archive_that_claims_to_span_disks_is_refused() -> None:
    """Found by 15,000 cases: the locator at the end of a large archive has the number of a disk."""
    content = VALID[".pt"]
    where = content.index(b"PK\x06\x07") + 4
    with pytest.raises(CelmError, match="span multiple disks"):
        parse_checkpoint(content[:where] + b"\x01" + content[where + 1 :], ".pt", LARGEST)


def test_unprintable_bytes_of_a_file_are_escaped() -> None:
    """Found by 20,000 cases: the byte order that an archive claims may be any bytes."""
    with pytest.raises(CelmError, match=r"byte order: 'l\\x00ttle'"):
        parse_checkpoint(rewritten(VALID[".pt"], {"archive/byteorder": b"l\x00ttle"}), ".pt", LARGEST)


CORPUS = sorted(path for path in (Path(__file__).parent / "corpus").glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_inputs_that_a_fuzzer_found_are_read_or_refused(path: Path) -> None:
    """A part of the corpus of benchmarks/fuzz_loaders.py: inputs that reached new code."""
    read(path.read_bytes(), f".{path.parent.name}")
