"""The confirmation of head evidence: its tables are those of the stored worth of every coalition."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

from celm.experiment.config import Experiment
from celm.federation.build import resolve_defaults
from celm.study.spec import load_study

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results/trust/head"


def read_json(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tables() -> Any:
    return read_json("table.json")


@pytest.mark.parametrize(
    ("stored", "table", "selections"),
    [
        ("truth.json", "table.json", "SELECTIONS"),
        ("many_clients.json", "many_clients_table.json", "MANY"),
    ],
)
def test_the_tables_follow_from_what_is_stored(stored: str, table: str, selections: str) -> None:
    script = runpy.run_path(str(FOLDER / "table.py"))
    federations, tables = read_json(stored), read_json(table)
    assert len(federations) == sum(tables["federations"].values())
    for selection in script[selections]:
        found = script["agreements"](federations, selection)
        shown = tables["pearson"][selection[0]]
        assert found.keys() == shown.keys()
        for column, by_measure in found.items():
            assert script["summarise"](list(by_measure["Pearson"].values())) == pytest.approx(shown[column])


@pytest.mark.parametrize(("name", "rows"), [("many_clients.toml", 10), ("weights.toml", 7)])
def test_every_cell_of_a_declared_study_can_be_built(name: str, rows: int) -> None:
    study = load_study(str(FOLDER / name))
    assert len(study.rows) == rows
    for row in study.rows:
        for method in study.methods_for_row(row).values():
            resolve_defaults(Experiment.parse({**row.settings, **method.settings}))


def test_a_stored_federation_gets_a_new_column_without_its_truth(tmp_path: Path) -> None:
    collect = runpy.run_path(str(FOLDER / "table.py"))["collect"]
    truths, estimates = tmp_path / "truths", tmp_path / "estimates"
    for folder in (truths, estimates):
        folder.mkdir()
    stored = [{"row": "digits pls", "seed": 50, "worth": {"1": 0.5}, "estimates": {"celm": {"a": 1.0}}}]
    (tmp_path / "truth.json").write_text(json.dumps(stored))
    (estimates / "digits_pls-seed50.json").write_text('{"coast": {"a": 0.5}}')
    (estimates / "digits_iid-seed50.json").write_text('{"coast": {"a": 0.5}}')
    (truths / "digits_sls-seed50.json").write_text('{"row": "digits sls", "seed": 50, "worth": {"1": 0.25}}')
    found = collect(truths, estimates, tmp_path / "truth.json")
    assert found == [{**stored[0], "estimates": {"celm": {"a": 1.0}, "coast": {"a": 0.5}}}]


def test_many_clients_are_compared_with_what_their_labels_would_give() -> None:
    script = runpy.run_path(str(FOLDER / "table.py"))
    counts = {"a": [4, 0], "b": [0, 3], "c": [0, 1]}  # class shares: 1, 3/4, 1/4; halved over two classes
    estimates = {"right": {"a": 0.5, "b": 0.375, "c": 0.125}, "reversed": {"a": -4.0, "b": -3.0, "c": -1.0}}
    row = "fashion_mnist pls, 20 clients"
    federation = {"row": row, "seed": 50, "counts": counts, "worth": {}, "estimates": estimates}
    of_twenty, of_fifty = script["MANY"][1:]
    found = script["agreements"]([federation], of_twenty)
    assert found["right"]["Pearson"] == {row: pytest.approx(1)}
    assert found["reversed"]["Pearson"] == {row: pytest.approx(-1)}
    assert not script["agreements"]([federation], of_fifty)
    assert any(
        line.startswith("| right | +1.00 |") for line in script["format_table"]([federation], of_twenty)
    )


def test_weights_are_paired_by_seeds_that_are_complete() -> None:
    script = runpy.run_path(str(FOLDER / "weights.py"))
    runs = script["load_runs"]()
    assert script["complete_seeds"](runs | {}) == [
        seed for seed in (42, 43, 44) if f"fashion_mnist_pls-head-seed{seed}" in runs
    ]
    rows = sorted({row for row, _ in script["measured_rows"]()})
    assert len(rows) == 7
    runs = {name: run for name, run in runs.items() if "-head-" not in name}
    for row in rows:  # a run of head evidence that is half a point better than CELM's
        for seed in (42, 44):
            celm = runs[f"{row}-celm-seed{seed}"]
            better = {name: celm[name] + 0.005 for name in celm if name.endswith("accuracy") and celm[name]}
            runs[f"{row}-head-seed{seed}"] = better
    assert script["complete_seeds"](runs) == [42, 44]
    table = script["format_table"](runs)
    assert table.count("+0.50 (+0.50, +0.50)") == 8
    assert "| head - celm | +0.50 ± 0.00 |" in table


def test_the_table_of_weights_is_that_of_the_runs_and_the_page_has_it() -> None:
    script = runpy.run_path(str(FOLDER / "weights.py"))
    table = script["format_table"](script["load_runs"]())
    assert table == (FOLDER / "weights.md").read_text(encoding="utf-8")
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(line in page for line in table.splitlines()[2:])


def test_the_page_states_what_twenty_clients_gave() -> None:
    script = runpy.run_path(str(FOLDER / "table.py"))
    found = script["agreements"](read_json("many_clients.json"), script["MANY"][1])
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for column in ("inversion", "rows", "celm", "head", "calibrated"):
        by_row = found[column]["Pearson"]
        order = [next(v for row, v in by_row.items() if name in row) for name in ("0.1", "0.5", "pls")]
        cells = " | ".join(f"{value:+.2f}" for value in [*order, statistics.mean(order)])
        assert f"| {column} | {cells} |" in page


def test_points_gained_by_attacks_are_those_of_the_runs() -> None:
    script = runpy.run_path(str(FOLDER / "attack_gains.py"))
    table = script["format_table"](read_json("attack_gains.json"))
    assert table == (FOLDER / "attack_gains.md").read_text(encoding="utf-8")
    gains = {row.split(" | ")[0].strip("| "): row.split(" | ")[2:] for row in table.splitlines()[2:]}
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, shown in {
        "sybil": "Sybils",
        "invent_data": "invented data",
        "flip_labels": "flipped labels",
    }.items():
        pls, maverick = gains[name][:3], [cell.strip("| ") for cell in gains[name][3:]]
        cells = " | ".join(f"{one}, {other}" for one, other in zip(pls, maverick, strict=True))
        assert f"| {shown} | {cells} |" in page


def test_the_table_of_conditions_is_that_of_the_runs() -> None:
    script = runpy.run_path(str(FOLDER / "conditions.py"))
    results = read_json("conditions.json")
    assert script["format_table"](results) == (FOLDER / "conditions.md").read_text(encoding="utf-8")
    uniform = statistics.mean(result["uniform"] for result in results.values())
    assert f"{uniform:.2f}" == "0.47"  # as pages say


@pytest.mark.parametrize(
    ("page", "names", "measures"),
    [
        ("results/trust/head/README.md", {}, ["claims", "celm", "unheld", "mass", "accuracy"]),
        ("docs/trust.md", {"no clipping": "ReLU, SGD"}, ["claims", "celm", "accuracy"]),
    ],
)
def test_pages_state_what_the_conditions_say(page: str, names: dict[str, str], measures: list[str]) -> None:
    script = runpy.run_path(str(FOLDER / "conditions.py"))
    results = read_json("conditions.json")
    checked = 0
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        condition, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        condition = names.get(condition, condition)
        if condition not in script["CONDITIONS"] or len(cells) != len(measures):
            continue
        seeds = script["complete_seeds"](results, condition)
        found = [results[f"{condition}/{split}/{seed}"] for seed in seeds for split in script["SPLITS"]]
        for cell, measure in zip(cells, measures, strict=True):
            value = statistics.mean(result[measure] for result in found)
            digits = len(cell.partition(".")[2])
            shown = f"{100 * value:.0f} %" if cell.endswith("%") else f"{value:.{digits}f}"
            assert cell == shown, (condition, measure)
        checked += 1
    assert checked >= 6


@pytest.mark.parametrize("page", ["results/trust/head/README.md", "docs/trust.md"])
def test_pages_state_what_the_table_says(page: str, tables: Any) -> None:
    names = {
        "`celm`, head evidence": "head",
        "`celm`, calibrated": "calibrated",
        "*true label counts*": "label counts",
    }
    columns = {**{name: name for name in tables["pearson"]["all rows"]}, **names}
    checked = 0
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        column = columns.get(cells[0], columns.get(cells[0].strip("`*")))
        figures = [cell for cell in cells[1:] if re.fullmatch(r"[+-]?\d\.\d\d ± \d\.\d\d", cell)]
        if column is None or len(figures) < 2:
            continue
        for figure, part in zip(figures, ("all rows", "without iid"), strict=False):
            cell = tables["pearson"][part][column]
            assert figure.lstrip("+") == f"{cell['mean']:.2f} ± {cell['error']:.2f}", (column, part)
        checked += 1
    assert checked >= 10
