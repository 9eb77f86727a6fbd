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


def test_the_table_follows_from_the_worth_of_coalitions(tables: Any) -> None:
    script = runpy.run_path(str(FOLDER / "table.py"))
    federations = read_json("truth.json")
    assert len(federations) == sum(tables["federations"].values())
    for selection in script["SELECTIONS"]:
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
