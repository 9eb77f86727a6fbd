"""The pictures of `celm watch` in the runbook show the committed record."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("watch_pictures", ROOT / "docs" / "watch_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("width", [80, 160])
def test_a_picture_shows_the_record(script: ModuleType, width: int) -> None:
    picture = (ROOT / "docs" / "assets" / f"watch-{width}.svg").read_text(encoding="utf-8")
    assert picture == script.draw_watch(script.RECORD, width)
    assert "idle:" in picture
    assert "excluded:" in picture
    assert "@font-face" not in picture
    assert f"assets/watch-{width}.svg" in (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
