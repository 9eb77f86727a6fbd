"""Empty data folders for tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def empty_data_root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up empty data and cache folders without system packages, and return the data folder."""
    root = tmp_path_factory.mktemp("root")
    data = root / "data"
    data.mkdir()
    monkeypatch.setenv("CELM_DATA", str(data))
    monkeypatch.setenv("CELM_CACHE", str(root / "decoded"))
    monkeypatch.setattr("celm.data.files.locate.SYSTEM_DATASETS", root / "system")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return data
