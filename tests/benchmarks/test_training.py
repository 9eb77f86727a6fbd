"""The benchmark of training runs on data that need no files, and its report says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def turns(*medians: float, **more: Any) -> list[dict[str, Any]]:
    return [{"seconds": [value / 2, value, 5 * value], "accuracy": 0.5, **more} for value in medians]


def test_a_ratio_is_taken_within_a_turn() -> None:
    from training import summarise_rival

    told = summarise_rival(turns(8.0, 30.0, 40.0, version="1"), turns(2.0, 10.0, 20.0))
    assert told["times"] == {"median": 3.0, "least": 2.0, "most": 4.0, "count": 3}
    assert told["seconds"]["count"] == 9
    assert told["version"] == "1"


def test_a_rival_that_failed_once_has_no_ratio() -> None:
    from training import summarise_rival

    assert summarise_rival([*turns(8.0), {"failed": "E"}], turns(2.0, 2.0)) == {"failed": "E"}


def test_the_limit_is_work_over_rate_over_time() -> None:
    from training import measure_limits

    found = {"rates": [{"square": 4e9, "layers": 2e9}], "celm": turns(5.0), "celm, even": turns(4.0)}
    told = measure_limits(found, flops=10**6, samples=2000, even_samples=4000)
    assert told["square"]["gigaflops_per_second"]["median"] == 4
    assert told["square"]["reached"]["median"] == pytest.approx(4000 * 1e6 / 4e9 / 4)
    assert told["layers"]["reached_with_five_clients"]["median"] == pytest.approx(2000 * 1e6 / 2e9 / 5)


def test_targets_say_what_is_reached_missed_and_not_measured() -> None:
    from training import check_targets

    medians = {"dataloader": 11.0, "dataloader, one thread": 9.0, "pfl": 2.0}
    rows = {name: {"times": {"median": value}} for name, value in medians.items()}
    rows["flower"] = {"not installed": True}
    told = check_targets("mlp", {"rivals": rows, "limit": {"layers": {"reached": {"median": 0.8}}}})
    assert [(each.get("rival"), each["found"], each["reached"]) for each in told] == [
        ("dataloader", 11.0, True),
        ("dataloader, one thread", 9.0, False),
        ("flower", None, None),
        ("pfl", 2.0, True),
        (None, 0.8, True),
    ]


def test_targets_without_any_rival_are_not_measured() -> None:
    from training import check_targets

    told = check_targets("cnn", {"rivals": {}, "limit": {"layers": {"reached": {"median": 0.4}}}})
    assert [each["reached"] for each in told] == [None, None, None, False]


def test_a_report_leaves_the_other_models_in_place(tmp_path: Path) -> None:
    from training import save_report

    out = tmp_path / "bench" / "training.json"
    for model, report in (("mlp", {"round": 1}), ("cnn", {"round": 2}), ("mlp", {"round": 3})):
        save_report(out, model, report)
    assert json.loads(out.read_text()) == {"mlp": {"round": 3}, "cnn": {"round": 2}}


@pytest.mark.slow
def test_the_quick_benchmark_writes_its_report_and_nothing_else(benchmarks: Path, tmp_path: Path) -> None:
    out = tmp_path / "results" / "training.json"
    command = [sys.executable, benchmarks / "training.py", "--quick", "--dataset", "digits", "--out", out]
    command += ["--rounds", "1", "--window", "0.05", "--workers", "2"]
    command += ["--only", "tensors, one thread", "dataloader, one thread", "pfl"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [out]
    report = json.loads(out.read_text())["mlp"]
    assert report["work"]["flops_per_sample"] == 2 * (2 * 64 * 128 + 3 * 128 * 64 + 3 * 64 * 10)
    assert report["rivals"]["tensors, one thread"]["times"]["median"] > 0
    assert report["rivals"]["pfl"] == {"not installed": True, "install": report["rivals"]["pfl"]["install"]}
    assert report["limit"]["layers"]["reached"]["count"] == 1
    assert len(report["targets"]) == 5


@pytest.mark.slow
def test_rivals_learn_as_celm_does(tmp_path: Path) -> None:
    from opponents import rival_settings, rivals, run_rival, write_data
    from training import make_federation, run_celm

    federation, rounds = make_federation("mlp", {"name": "digits"}, clients=5, workers=0), 60
    data = tmp_path / "data.safetensors"
    write_data(federation, data)
    ours = run_celm(federation, rounds)
    for name in ("tensors", "dataloader"):
        theirs = run_rival(rivals(1)[name], sys.executable, data, rival_settings(federation, rounds, 1))
        assert len(theirs["seconds"]) == len(ours["seconds"]) == rounds
        assert theirs["accuracy"] == pytest.approx(ours["accuracy"], abs=0.05)
    assert ours["accuracy"] > 0.5
