"""Costs of a run: bytes by hand, memory against torch's own profiler, seconds from the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import celm
from celm.core.model_stack import ModelStack
from celm.core.probe import probe
from celm.experiment.component_config import ModelConfig, ObjectiveConfig
from celm.federation.model_spec import ModelSpec, build_from_spec
from celm.models.state_dict import get_state
from celm.runs.run import Run
from celm.study.resource_metrics import (
    download_megabytes,
    measure_probe_peak,
    probe_megabytes,
    server_seconds,
    upload_megabytes,
)
from celm.study.run_metrics import compute_metric

WHOLE = 4 * (64 * 16 + 16 + 16 * 10 + 10)
"""Bytes of a perceptron 64-16-10."""
HEAD = 4 * (16 * 10 + 10)


def run(folder: Path, **tables: Any) -> Run:
    settings = {
        "split": {"name": "pls", "clients": 3},
        "model": {"name": "mlp", "widths": [16]},
        "probe": {"steps": 2},
        "rule": {"name": "celm", "warmup": 3},
        "run": {"rounds": 4},
        **tables,
    }
    return celm.run(celm.Experiment.parse(settings), out=folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("runs") / "plain")


def test_bytes_are_those_of_the_models_without_the_heads_that_clients_keep(plain: Run) -> None:
    assert upload_megabytes(plain) == pytest.approx(3 * WHOLE / 1e6)
    # Heads stay with their clients in rounds 2 and 3 of 4.
    assert download_megabytes(plain) == pytest.approx((4 * 3 * WHOLE - 2 * 3 * HEAD) / 4 / 1e6)


def test_who_takes_part_for_the_first_time_is_sent_a_head(tmp_path: Path) -> None:
    half = run(
        tmp_path / "half", run={"rounds": 4, "participation": 0.5}, split={"name": "pls", "clients": 4}
    )
    assert {len(record["clients"]) for record in half.rounds} == {2}
    again = sum(
        client in {name for before in half.rounds[:i] for name in before["clients"]}
        for i, record in enumerate(half.rounds[:3])
        for client in record["clients"]
    )
    assert 0 < again < 6
    assert download_megabytes(half) == pytest.approx((8 * WHOLE - again * HEAD) / 4 / 1e6)


def test_shared_heads_travel_every_round(tmp_path: Path) -> None:
    shared = run(tmp_path / "shared", run={"rounds": 2, "local_heads": 0})
    assert download_megabytes(shared) == upload_megabytes(shared) == pytest.approx(3 * WHOLE / 1e6)


@pytest.mark.parametrize(("model", "shape"), [("mlp", (1, 28, 28)), ("cnn", (3, 32, 32))])
@pytest.mark.parametrize("chunk", [None, 7])
def test_the_memory_of_a_probe_is_what_torch_itself_allocates(
    model: str, shape: tuple[int, ...], chunk: int | None
) -> None:
    recipe = ModelSpec(ModelConfig(name=model), ObjectiveConfig(name="plain"), shape, tuple("abcde"), 1)
    module = build_from_spec(recipe).module
    stack, start = ModelStack(module, [get_state(module)] * 4), torch.zeros(4, 5, *shape)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as allocated:
        probe(stack, start, 5, steps=6, chunk=chunk)
    now = most = 0
    assert allocated.profiler is not None
    for event in allocated.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    assert measure_probe_peak(recipe, 4, chunk) == pytest.approx(most, abs=1000)


def test_a_run_is_probed_with_all_its_clients_and_the_global_model(plain: Run) -> None:
    recipe = ModelSpec(plain.experiment.model, plain.experiment.objective, (1, 8, 8), tuple("0123456789"), 1)
    assert probe_megabytes(plain) == measure_probe_peak(recipe, 4, None) / 1e6


def test_seconds_at_the_server_are_a_mean_over_rounds(plain: Run, tmp_path: Path) -> None:
    found = server_seconds(plain)
    assert found is not None
    total = [json.loads(line)["seconds"] for line in (plain.folder / "times.jsonl").read_text().splitlines()]
    assert 0 < found < sum(total) / 4
    elsewhere = replace(plain, folder=tmp_path)
    lines = [{"round": i + 1, "seconds": 9, "server_seconds": s} for i, s in enumerate((50.0, 0.2, 0.4, 0.1))]
    (tmp_path / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert server_seconds(elsewhere) == pytest.approx(
        (0.3 + 0.2 + 0.4 + 0.1) / 4
    )  # the first probe loads torch


def test_what_a_folder_does_not_hold_is_no_number(plain: Run, tmp_path: Path) -> None:
    (tmp_path / "times.jsonl").write_text('{"round": 1, "seconds": 1.0}\n')
    older = replace(plain, folder=tmp_path)
    names = ("upload_megabytes", "download_megabytes", "probe_megabytes", "server_seconds")
    assert [compute_metric(name, older) for name in names] == [None] * 4


def test_without_a_probe_there_is_no_memory_of_one(tmp_path: Path) -> None:
    assert probe_megabytes(run(tmp_path / "fedavg", rule={"name": "fedavg"}, run={"rounds": 1})) is None


@pytest.mark.slow
def test_what_a_clock_measured_is_in_a_table_of_its_own(tmp_path: Path, celm: Callable[..., Any]) -> None:
    only = "--only=split=pls method=celm"
    done = celm("study", "ablations", "--scale=smoke", only, "--out=out", "--format=json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {cell["row"].split()[-1]: cell["mean"] for cell in found["cells"]}
    assert set(rows) == {"accuracy", "jsd", "upload_megabytes", "download_megabytes", "probe_megabytes"}
    assert all(value > 0 for value in rows.values())
    assert [cell["row"].split()[-1] for cell in found["times"]] == ["server_seconds"]
    assert "server_seconds" not in (tmp_path / "out" / "table.csv").read_text()
    assert "server_seconds" in (tmp_path / "out" / "times.csv").read_text()
