from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def _played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.consortium import play_consortium

    folder = tmp_path_factory.mktemp("consortium") / "state"
    play_consortium(folder)
    return folder


@pytest.fixture
def consortium_folder(_played: Path, tmp_path: Path) -> Path:
    """A copy of the state folder of eight rounds: `east` is idle from round 6 on, `west` sends NaN."""
    return Path(shutil.copytree(_played, tmp_path / "state"))
