"""Contributions as CSV, JSON and Parquet, and the global model of a state folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from pyarrow import parquet
from safetensors.torch import load_file
from typer.testing import Result

import celm
from celm.base.files import tensor_digest
from celm.operations.contributions import to_csv
from support.small_grid import SmallGrid
from support.state_folders import clients, lines_of, play

Invoke = Callable[..., Result]
Refused = Callable[..., str]


def test_each_client_has_a_row_in_each_round(consortium_folder: Path, invoke: Invoke) -> None:
    for suffix in ("csv", "json", "parquet"):
        done = invoke("export", consortium_folder, "--contributions", f"table.{suffix}")
        assert done.exit_code == 0
    rows = json.loads((consortium_folder.parent / "table.json").read_text())
    lines = lines_of(consortium_folder / "rounds.jsonl")
    assert [(row["round"], row["client"]) for row in rows] == [
        (line["round"], client) for line in lines for client in line["client_weights"]
    ]
    for row in rows:
        line, client = lines[row["round"] - 1], row["client"]
        assert row["key"] == line["keys"][client]
        assert row["asked"] is (client in line["asked"])
        assert row["answered"] is (client != "west")
        assert row["weight"] == line["client_weights"][client]
        assert row["score"] == (line["scores"] or {}).get(client)
        assert row["earned"] == line["earned"][client]
        assert ("idle" in row["flags"]) == (client == "east" and row["round"] >= 6)
        assert ("excluded" in row["flags"]) == (client == "west")
    assert parquet.read_table(consortium_folder.parent / "table.parquet").to_pylist() == rows
    with (consortium_folder.parent / "table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["weight"]) for row in table] == [row["weight"] for row in rows]
    assert [row["flags"] for row in table] == [row["flags"] for row in rows]
    assert not (consortium_folder.parent / "model.safetensors").exists()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", " =1"])
def test_cells_that_begin_a_formula_are_text(text: str) -> None:
    assert to_csv([{"client": text}]) == f"client\n'{text}\n"


def test_line_breaks_in_cells_and_numbers() -> None:
    assert to_csv([{"client": "a\r=1\n=2", "weight": -0.5}]) == "client,weight\na\\r=1\\n=2,-0.5\n"


def test_a_client_may_not_write_a_formula(tmp_path: Path, invoke: Invoke) -> None:
    grid = SmallGrid(clients())
    grid.registered["a"] = '=HYPERLINK("http://evil")'
    play(tmp_path / "state", 2, grid)
    invoke("export", tmp_path / "state", "--contributions=table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert any("HYPERLINK" in cell for cell in cells)
    assert not [cell for cell in cells if cell[:1] in "=@+" and cell]


def test_the_global_model_is_the_recorded_one(tmp_path: Path, invoke: Invoke, refused: Refused) -> None:
    result = play(tmp_path / "state", 3)
    assert invoke("export", tmp_path / "state", "--out=global.safetensors").exit_code == 0
    model = load_file(tmp_path / "global.safetensors")
    assert tensor_digest(model) == lines_of(tmp_path / "state" / "rounds.jsonl")[-1]["model"]
    expected = result.arrays.to_torch_state_dict()
    assert all(torch.equal(model[name], tensor) for name, tensor in expected.items())
    assert set(model) == set(expected)
    assert "use .safetensors" in refused("export", tmp_path / "state", "--out=model.pt2")
    other = tmp_path / "other"
    play(other, 3, rule_options={"warmup": 1})
    checkpoint = "checkpoints/round-000003.safetensors"
    (tmp_path / "state" / checkpoint).write_bytes((other / checkpoint).read_bytes())
    message = refused("export", tmp_path / "state")
    assert "does not belong to the record" in message
    (other / checkpoint).write_bytes(b"nonsense")
    assert "damaged" in refused("export", other)
    for path in (other / "checkpoints").iterdir():
        path.unlink()
    assert "has no checkpoint" in refused("export", other)


def test_contributions_of_a_run(tmp_path: Path, invoke: Invoke, refused: Refused) -> None:
    settings = {"split": {"name": "iid", "clients": 2}, "model": {"name": "mlp", "widths": [8]}}
    run = celm.run(celm.Experiment(rule="fedavg", run={"rounds": 2}, **settings), tmp_path / "run")
    done = invoke("export", run.folder, "--contributions=table.json", "--out=model.safetensors")
    assert done.exit_code == 0
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [(row["round"], row["client"], row["answered"]) for row in rows] == [
        (number, f"client-{i}", True) for number in (1, 2) for i in (0, 1)
    ]
    assert (tmp_path / "model.safetensors").exists()
    assert "unknown format" in refused("export", run.folder, "--contributions=table.xlsx")
    assert "cannot write" in refused("export", run.folder, "--contributions=no/folder.csv")
    assert "has no settings.toml or rounds.jsonl" in refused("export", tmp_path, "--contributions=a.csv")
