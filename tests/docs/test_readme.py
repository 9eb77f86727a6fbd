"""The README is short, and its figures are those of the committed results."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import celm

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = {
    "Dirichlet 0.05": ("main", "fashion_mnist dirichlet_0.05"),
    "Dirichlet 0.1": ("main", "fashion_mnist dirichlet_0.1"),
    "pure label skew": ("main", "fashion_mnist pls"),
    "step label skew": ("main", "fashion_mnist sls"),
    "Maverick, rare classes": ("maverick", "fashion_mnist maverick rare_class_accuracy"),
    "identical clients": ("iid", "fashion_mnist iid"),
}
"""Row of the README to the study and its row."""


def read_json(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def sentence(start: str) -> str:
    """Return the sentence of the README that starts so, on one line."""
    found = re.search(re.escape(start) + r".*?\.(?=\s)", " ".join(README.split()))
    assert found is not None, start
    return found[0]


def weights_gained(method: str) -> dict[str, list[float]]:
    """Return attack to the weight that it gained with this method on each split, in points."""
    gained: dict[str, list[float]] = {}
    tables = (ROOT / "results/trust/attacks/table.md").read_text(encoding="utf-8").split("\n**")
    for table in tables:
        if ": weight gained by the attacker" in table:
            header, _, *rows = (line.split(" | ") for line in table.splitlines() if line.startswith("|"))
            for row in rows:
                cell = row[header.index(method)]
                gained.setdefault(row[0].strip("| "), []).append(float(cell.rstrip("!")))
    return gained


def test_it_is_short_and_shows_both_commands_near_its_top() -> None:
    assert len(README.split()) <= 700
    top = README[:400]
    assert "make demo" in top
    assert "make test" in top


def test_the_results_are_those_of_the_studies() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.*±.*) \|$", README, re.MULTILINE))
    assert list(rows) == list(ROWS)
    for name, (study, row) in ROWS.items():
        cells = {}
        with (ROOT / "results" / study / "table.csv").open(encoding="utf-8") as file:
            for cell in csv.DictReader(file):
                if cell["row"] == row:
                    mean, std, paper = (100 * float(cell[key]) for key in ("mean", "std", "paper_mean"))
                    cells[cell["column"]] = f"{mean:.2f}±{std:.2f} ({paper:.2f})"
        shown = [cell.replace("*", "") for cell in rows[name].split(" | ")]
        assert shown == [cells[method] for method in ("fedavg", "shapfed", "celm")], name
        best = max(shown, key=lambda cell: float(cell.partition("±")[0]))
        assert f"**{best.partition(' (')[0]}**" in rows[name]


def test_the_correlations_are_those_of_the_confirmation() -> None:
    document = read_json("trust/head/table.json")
    found = document["pearson"]["all rows"]
    means = {column: round(cell["mean"], 2) for column, cell in found.items()}
    description = re.search(r'alt="(Correlation[^"]*)"', README)
    assert description is not None
    shown = [float(number) for number in re.findall(r"\d\.\d\d", description[1])]
    ours = ["head", "calibrated", "celm", "data size"]
    rivals = ["fedce", "gtg_shapley", "shapfed", "cffl", "rffl", "cgsv"]
    assert shown == [*(means[column] for column in ours), max(means[column] for column in rivals)]
    assert shown == sorted(shown, reverse=True)
    assert f"{sum(document['federations'].values())} federations" in README
    errors = [found[column]["error"] for column in (*ours, *rivals)]
    assert f"(standard errors {min(errors):.2f} to {max(errors):.2f})" in " ".join(README.split())
    assert means["head"] >= means["label counts"]


def test_attacks_pay_as_the_readme_says() -> None:
    assert "multiplies its last layer raises its evidence" in README
    paper = weights_gained("celm")
    assert all(min(gained) > 0 for attack, gained in paper.items() if attack.startswith("scale_head"))
    assert "stops most attacks that we tried" in README
    trust = weights_gained("celm calibrated, looking again, clipped")
    paying = {attack for attack, gained in trust.items() if max(gained) > 1}
    assert paying == {
        "fabricate_class, random x2",
        "fabricate_class, global x2",
        "fabricate_class, own x3",
        "sybil",
    }
    assert len(paying) < len(trust) / 2


def test_two_of_three_seeds_miss_the_free_rider_of_cifar10() -> None:
    runs = read_json("cifar10/paper/warm-up.json")
    runs = [run for name, run in runs.items() if name.startswith("cifar10_free_rider-celm-")]
    frozen = [run["client_weights"][-1] for run in runs]
    missed = [
        min(weights, key=weights.__getitem__) not in run["free_riders"]
        for run, weights in zip(runs, frozen, strict=True)
    ]
    words = {2: "Two", 3: "three"}
    assert f"{words[sum(missed)]} of {words[len(missed)]} seeds miss the free-rider." in " ".join(
        README.split()
    )
    # "the global model's logits, which CELM subtracts, outgrow the remaining evidence"
    for run in runs:
        remaining = [mean(map(mean, evidence.values())) for evidence in run["evidence_by_round"]]
        assert run["levels"][0] < remaining[0]
        assert run["levels"][-1] > 2 * remaining[-1]


def test_the_table_of_a_flower_federation_is_that_of_the_trial() -> None:
    trial = read_json("flower/behaviours.json")["behaviours"]["unchanged"]
    assert "\n".join(line.rstrip() for line in trial["table"]) in README
    assert trial["weights"]["east"] == 0
    assert {client for _, client, _, _ in trial["flags"]} == {"east"}


@pytest.mark.slow
def test_the_free_rider_is_last_and_the_sole_holder_first(tmp_path: Path) -> None:
    shown = {
        client: int(weight) for client, weight in re.findall(r"^(client-\d) (\d+)%$", README, re.MULTILINE)
    }
    experiment = celm.Experiment(split={"name": "frm", "kind": "copy_global"})
    found = celm.run(experiment, tmp_path / "run").weights
    assert list(found) == list(shown)
    for weights in (shown, found):
        assert min(weights, key=weights.__getitem__) == "client-0"
        assert max(weights, key=weights.__getitem__) == "client-4"


@pytest.mark.slow
def test_a_research_task_takes_at_most_eight_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```python\n(split = .*?)```", README, re.DOTALL)
    assert block is not None
    assert len(block[1].splitlines()) <= 8
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"celm": celm}
    exec(block[1], names)
    frame = names["frame"]
    assert sorted(set(frame["method"])) == ["celm", "celm+fedrs", "fedavg", "shapfed"]
    assert len(frame) == 4 * 2
    assert set(frame["rounds"]) == {20}
    assert (tmp_path / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    folder = tmp_path / "compare" / "digits-dirichlet-0.05-20-rounds"
    assert "celm+fedrs" in (folder / "table.md").read_text(encoding="utf-8")
    assert names["comparison"].manifest.title.startswith("digits, dirichlet 0.05")


@pytest.mark.slow
def test_celm_loses_as_the_readme_says(tmp_path: Path) -> None:
    shown = re.search(r"FedAvg reaches ([\d.]+) % and CELM ([\d.]+) %", README)
    assert shown is not None
    found = []
    for rule, accuracy in zip(("fedavg", "celm"), shown.groups(), strict=True):
        experiment = celm.Experiment(split="pls", rule=rule, train={"batch": 32})
        found.append(100 * celm.run(experiment, tmp_path / rule).accuracy)
        # Machines differ in rounding, which 100 rounds of training magnify.
        assert found[-1] == pytest.approx(float(accuracy), abs=5)
    fedavg, own = found
    assert fedavg > own + 2
