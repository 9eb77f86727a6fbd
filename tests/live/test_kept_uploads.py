"""The uploads of the last rounds: bounded, and never under a path that a client chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from celm.base.errors import CelmError
from celm.live.kept_uploads import file_stems, save_uploads


def test_old_uploads_are_removed_before_the_bound_is_exceeded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).state_dict()
    size = sum(tensor.numel() * 4 for tensor in model.values())
    for number in range(1, 6):
        save_uploads(tmp_path, number, model, {"a": model}, 5, 5 * size)
    kept = sorted(path.name for path in (tmp_path / "uploads").iterdir())
    assert kept[-1] == "round-000005"
    assert len(kept) < 3  # a round has two models, and files have headers
    with pytest.raises(CelmError, match="more than upload_bytes"):
        save_uploads(tmp_path, 6, model, {"a": model}, 5, size)
    assert sorted(path.name for path in (tmp_path / "uploads").iterdir()) == kept


def test_no_client_name_is_used_as_a_path() -> None:
    names = ["../../etc/x", "a/b", "a_b-2", "global", "GLOBAL", "", ".", "n" * 300, "ward", "Ward"]
    stems = file_stems(dict.fromkeys(names))
    assert len({stem.casefold() for stem in stems}) == len(names)
    assert all(stem and stem.casefold() != "global" and not set(stem) & set("/\\\0") for stem in stems)
    assert not [stem for stem in stems if stem.startswith(".")]
    assert max(map(len, stems)) < 150
    assert stems[8] == "ward"
