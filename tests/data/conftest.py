"""Where the real datasets are, for the tests that need them."""

from __future__ import annotations

from pathlib import Path

import pytest


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
