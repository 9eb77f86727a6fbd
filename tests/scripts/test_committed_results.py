"""Scripts make the committed tables from the committed runs again, and the committed settings are valid."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celm.experiment.config import Experiment

RESULTS = Path(__file__).resolve().parents[2] / "results"
Load = Callable[[str], ModuleType]


def read(name: str) -> Any:
    text = (RESULTS / name).read_text()
    return json.loads(text) if name.endswith(".json") else text


def embedded_settings(value: Any) -> Iterator[str]:
    """Yield the text of every settings.toml in a JSON value."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key == "settings" and isinstance(part, str):
                yield part
            else:
                yield from embedded_settings(part)
    elif isinstance(value, list):
        for part in value:
            yield from embedded_settings(part)


COLLECTED = [
    str(path.relative_to(RESULTS))
    for path in sorted(RESULTS.rglob("*.json"))
    if '"settings"' in path.read_text()
]


@pytest.mark.parametrize("name", COLLECTED)
def test_the_settings_of_committed_runs_are_valid(name: str) -> None:
    texts = set(embedded_settings(read(name)))
    assert texts
    for text in texts:
        Experiment.parse(tomllib.loads(text))


def test_tables_of_the_core_are_those_of_its_cells(load_script: Load) -> None:
    script = load_script("results/core/summarise.py")
    page = read("core/README.md")
    for table in (script.accuracy_table(), script.evidence_table(), script.accuracy_curve()):
        assert "\n".join(table) in page


def test_the_table_of_audits_is_that_of_its_cells(load_script: Load) -> None:
    cells = [json.loads(path.read_text()) for path in sorted((RESULTS / "audit/cells").glob("*.json"))]
    assert load_script("results/audit/measure.py").table(cells) in read("audit/README.md")


def test_the_table_of_claims_is_that_of_its_runs(load_script: Load) -> None:
    """Also fails if the test of class holders changes, so that its rates must be measured again."""
    script, page = load_script("results/claims/measure.py"), read("claims/README.md")
    for dataset in script.DATASETS:
        rows = script.table(read(f"claims/{dataset}.json"), dataset)
        assert len(rows) == 16
        for row in rows:
            assert row in page or "| 1 | test | 0 |" in row, row


def test_the_matrix_of_attacks_is_that_of_its_runs(load_script: Load) -> None:
    script = load_script("results/trust/attacks.py")
    assert script.format_tables(script.FULL) == read("trust/attacks/table.md")


def test_the_page_of_estimators_is_that_of_its_study(load_script: Load) -> None:
    script = load_script("results/trust/estimators.py")
    assert script.format_page(read("trust/estimators/truth.json")) == read("trust/estimators.md")


def test_rows_of_noise_are_those_of_its_runs(load_script: Load) -> None:
    noise = read("flower/noise.json")
    assert (
        json.loads(json.dumps(load_script("results/flower/noise.py").table(noise["runs"]))) == noise["rows"]
    )


def test_idle_clients_were_found_as_the_page_says(load_script: Load) -> None:
    rows = load_script("results/trust/idle.py").summarise_results(read("trust/idle.json"))
    assert len(rows) == 15
    assert all(row["runs"] == 10 for row in rows)
    on_drift = [row for row in rows if row["method"].startswith("on-drift, idle")]
    assert [row["found within 15 rounds"] for row in on_drift] == [10] * 5


def test_evidence_on_cifar10_is_printed_as_the_page_says(
    load_script: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    load_script("results/cifar10/evidence.py").main()
    blocks = re.split(r"^(?=\S)", capsys.readouterr().out, flags=re.MULTILINE)
    block = next(block for block in blocks if block.startswith("main, cifar10_pls-celm-seed42"))
    # README.md: none of 448 images of class 2, none of 429 of class 4; distance 0.281, uniform 0.502.
    assert "images of the others: [429, 448]" in block
    assert "distance to the truth 0.281, of a uniform guess 0.502" in block
    assert all(number in read("cifar10/README.md") for number in ("429", "448", "0.281", "0.502"))


def test_the_page_of_benchmarks_is_that_of_their_reports(
    load_script: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RESULTS / "bench", tmp_path / "results/bench")
    (tmp_path / "results/bench/README.md").unlink()
    monkeypatch.chdir(tmp_path)
    load_script("benchmarks/page.py").main()
    assert (tmp_path / "results/bench/README.md").read_text() == read("bench/README.md")


def test_the_costs_of_hostile_files_are_those_of_their_report(load_script: Load) -> None:
    table = load_script("benchmarks/page_safety.py").render_worst_files(read("bench/hostile_files.json"))
    assert table in (RESULTS.parent / "SECURITY.md").read_text()


def test_tables_of_natural_clients_are_those_of_their_runs(load_script: Load) -> None:
    page = read("natural/README.md")
    tables = load_script("results/natural/summarise.py").tables()
    assert {"heart, accuracy", "heart, clients", "heart, agreement"} <= set(tables)
    for title, lines in tables.items():
        assert "\n".join(lines) in page, title


def test_committed_shapley_values_are_means_over_all_orders_of_arrival() -> None:
    truths = read("natural/truth.json")["truth"]
    assert len(truths) >= 10
    for truth in truths:
        worth = {frozenset(map(int, name.split("+"))): value for name, value in truth["worth"].items()}
        orders = list(permutations(range(len(truth["shapley"]))))
        gained = [0.0] * len(truth["shapley"])
        for order in orders:
            for place, client in enumerate(order):
                before = worth.get(frozenset(order[:place]), 0.0)
                gained[client] += (worth[frozenset(order[: place + 1])] - before) / len(orders)
        assert list(truth["shapley"].values()) == pytest.approx(gained)
