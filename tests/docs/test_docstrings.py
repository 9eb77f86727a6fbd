"""Examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import celm

SOURCES = Path(celm.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(("celm", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCES.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_hold(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "celm").startswith("celm"):
            raise
        pytest.skip(f"{missing.name} is not installed")  # an extra
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
