"""Rounds with many large models: each is decoded again on every use, and few are in memory at once."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord

from celm.flower import CelmStrategy
from celm.flower.array_codec import FlowerLayout
from celm.live import client_replies
from celm.models import averaging
from celm.models.state_dict import StateDict
from support.consortium import member, play_consortium
from support.small_grid import SmallGrid, initial, network
from support.state_folders import lines_of

CHAIN = {"time", "previous", "heads"}


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    play_consortium(folder, rounds=7)
    return [
        {key: value for key, value in line.items() if key not in CHAIN}
        for line in lines_of(folder / "rounds.jsonl")
    ]


def test_the_record_is_the_same_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the warm-up and after it, with clipped, idle and excluded members."""
    expected = rounds_of(tmp_path / "eager")
    monkeypatch.setattr(client_replies, "LAZY_BYTES", 0)
    assert rounds_of(tmp_path / "lazy") == expected
    assert any(line["clipped"] for line in expected)
    assert any("idle" in flags for line in expected for flags in line["flags"].values())


@pytest.mark.parametrize(("lazy_bytes", "least", "most"), [(0, 1, 4), (10**12, 12, 100)])
def test_few_models_are_in_memory_at_once(
    monkeypatch: pytest.MonkeyPatch, lazy_bytes: int, least: int, most: int
) -> None:
    """One warm-up round and one after it, by batches of one model. If updates are not lazy, all are in memory."""
    monkeypatch.setattr(client_replies, "LAZY_BYTES", lazy_bytes)
    monkeypatch.setattr(averaging, "READ_AHEAD_BYTES", 1)
    alive, peak = 0, 0
    decode = FlowerLayout.decode_state

    def end() -> None:
        nonlocal alive
        alive -= 1

    def counted(layout: FlowerLayout, record: ArrayRecord) -> StateDict:
        nonlocal alive, peak
        state = decode(layout, record)
        weakref.finalize(next(iter(state.values())), end)
        alive += 1
        peak = max(peak, alive)
        return state

    monkeypatch.setattr(FlowerLayout, "decode_state", counted)
    clients = {f"client-{i}": member((i % 3, (i + 1) % 3)) for i in range(12)}
    strategy = CelmStrategy(
        network(),
        (6,),
        3,
        rule_options={"warmup": 1, "min_warmup": 1},
        probe={"steps": 2, "chunk": 3},
        fraction_evaluate=0.0,
    )
    result = strategy.start(SmallGrid(clients), initial(), num_rounds=2)
    assert len(result.records) == 2
    assert least <= peak <= most
