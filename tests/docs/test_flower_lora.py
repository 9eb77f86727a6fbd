"""The LoRA app of docs/flower.md runs as it stands: real apps of Flower, peft and transformers, on the small grid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")
pytest.importorskip("peft", reason="needs pip install peft")

import torch
from flwr.app import Context, RecordDict

from celm.records.federation_files import read_state_folder
from support.small_grid import Client, SmallGrid

PAGE = Path(__file__).resolve().parents[2] / "docs" / "flower.md"


def test_the_app_runs_and_its_members_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = re.findall(
        r'```python title="lora.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    app: dict[str, Any] = {}
    exec(compile(source, "lora.py", "exec"), app)

    def node(partition: int) -> Client:
        context = Context(1, partition, {"partition-id": partition}, RecordDict(), {})
        return lambda message: app["client"](message, context)

    members = ["north", "south", "west"]
    grid = SmallGrid({name: node(partition) for partition, name in enumerate(members)})
    settings = {"state": str(tmp_path / "state"), "out": str(tmp_path / "adapter.pt")}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        app["server"](grid, Context(1, 0, {}, RecordDict(), settings))
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().out
    assert all(name in printed for name in members)
    adapter = torch.load(tmp_path / "adapter.pt")
    assert adapter.keys() == app["get_peft_model_state_dict"](app["make_model"]()).keys()
    records = read_state_folder(tmp_path / "state").records
    assert [record["excluded"] for record in records] == [{}] * 6
    assert not any(record["flags"] for record in records)
    evidence = records[4]["evidence"]  # the last round of the warm-up
    for k, name in enumerate(members):
        assert evidence[name][k] == max(row[k] for row in evidence.values()) > 0
