"""Where the real datasets are, for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the real datasets, which `CELM_DATA` names during the test."""
    named = os.environ.get("CELM_TEST_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real datasets in {folder}; set CELM_TEST_DATA to a folder that has them")
    monkeypatch.setenv("CELM_DATA", str(folder))
    return folder


@pytest.fixture
def own_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty data and cache folders, and no system packages; returns the data folder."""
    places = tmp_path_factory.mktemp("places")
    data = places / "data"
    data.mkdir()
    monkeypatch.setenv("CELM_DATA", str(data))
    monkeypatch.setenv("CELM_CACHE", str(places / "decoded"))
    monkeypatch.setattr("celm.data.files.locate.SYSTEM", places / "system")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return data
