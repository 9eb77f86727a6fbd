"""Files with random damage: a file is read as tensors or refused in one line; nothing else ever happens.

300 cases of each kind here; CELM_FUZZ=100000 makes it so many.
"""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from auditing.conftest import random_state, rewritten
from celm.auditing.fitting import fitted
from celm.auditing.reading import parse
from celm.base.errors import CelmError

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
        return fitted(parse(content, suffix, LARGEST), REFERENCE, {}, {}).state
    except CelmError as error:
        reason = str(error)
    assert len(reason) < 600
    assert reason.isprintable()
    return None


@pytest.mark.parametrize("suffix", VALID)
def test_whole_files_are_read(suffix: str) -> None:
    found = read(VALID[suffix], suffix)
    assert found is not None
    assert all(torch.equal(found[name], tensor) for name, tensor in random_state(1).items())


@pytest.mark.parametrize("suffix", VALID)
@given(acts=st.lists(damage, min_size=1, max_size=4))
@settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_damaged_files_are_read_or_refused(suffix: str, acts: list[tuple[str, float, int | bytes]]) -> None:
    found = read(damaged(VALID[suffix], acts), suffix)
    if found is not None:
        assert {name: tensor.shape for name, tensor in found.items()} == {
            name: tensor.shape for name, tensor in REFERENCE.items()
        }
        assert all(bool(tensor.isfinite().all()) for tensor in found.values())


@pytest.mark.parametrize("suffix", VALID)
@given(content=st.binary(max_size=200))
@settings(max_examples=CASES, deadline=None, derandomize=True)
def test_random_bytes_are_refused(suffix: str, content: bytes) -> None:
    assert read(content, suffix) is None


def test_an_archive_that_claims_to_span_disks_is_refused() -> None:
    """Found by 15,000 cases: the locator at the end of a large archive names the number of its disk."""
    content = VALID[".pt"]
    where = content.index(b"PK\x06\x07") + 4
    with pytest.raises(CelmError, match="span multiple disks"):
        parse(content[:where] + b"\x01" + content[where + 1 :], ".pt", LARGEST)


def test_what_a_file_says_of_itself_is_made_visible() -> None:
    """Found by 20,000 cases: the byte order that an archive claims may be anything."""
    with pytest.raises(CelmError, match=r"has the byte order 'l\\x00ttle', not 'little'"):
        parse(rewritten(VALID[".pt"], {"archive/byteorder": b"l\x00ttle"}), ".pt", LARGEST)
