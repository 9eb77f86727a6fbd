"""Compare the estimates of the confirmation with the truth: python results/trust/head/table.py [--many]

The script reads the files of truths.py and estimators.py, collects them in truth.json beside this file, and writes
table.md. Federations whose truth is not complete are left out; those of truth.json need no files. The standard errors
are over rows, each the mean of its seeds; differences are paired by rows. With `--many` it does so for the study
many_clients.toml. The means are also in table.json, or many_clients_table.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from celm.base.files import dump_json, write_text
from celm.core.evidence import scores
from celm.study.ground_truth import AGREEMENT_MEASURES, measure_agreement, truth_from_worth
from celm.study.spec import load_study, slug

HERE = Path(__file__).parent
CEILINGS = ("label counts", "other seeds")
PAIRS = [
    ("calibrated, scores from head", "calibrated"),
    ("head", "celm"),
    ("head", "calibrated"),
    ("head", "data size"),
    ("inversion", "head"),
    ("agreement", "head"),
    ("head", "coast"),
    ("head", "singleton"),
    ("head", "in_run"),
    ("head", "in_run, second order"),
]
Federation = dict[str, Any]
Selection = tuple[str, str, str, Callable[[str], bool]]
SELECTIONS: list[Selection] = [
    ("all rows", "accuracy", "shapley", lambda row: True),
    ("without iid", "accuracy", "shapley", lambda row: "iid" not in row),
    ("digits, without iid", "accuracy", "shapley", lambda row: row.startswith("digits") and "iid" not in row),
    ("FashionMNIST, without iid", "accuracy", "shapley", lambda row: "fashion" in row and "iid" not in row),
    ("leave-one-out", "accuracy", "leave_one_out", lambda row: True),
    ("rare classes", "rare_class_accuracy", "shapley", lambda row: True),
]
"""Title, utility, reference and rows of a part of the table."""
MANY: list[Selection] = [
    ("10 clients", "accuracy", "shapley", lambda row: "10 clients" in row),
    ("20 clients, against label counts", "accuracy", "label counts", lambda row: "20 clients" in row),
    ("50 clients, against label counts", "accuracy", "label counts", lambda row: "50 clients" in row),
]
"""The parts of the table of many clients."""


def collect(truths: Path, estimates: Path, stored: Path) -> list[Federation]:
    """Return the federations with a truth and estimates, in the order of seeds.

    The files add to what is stored: a stored federation needs no truth again to get another column.
    """
    found = {_file_name(f): f for f in (json.loads(stored.read_text()) if stored.exists() else [])}
    for path in sorted(truths.glob("*.json")):
        federation = json.loads(path.read_text())
        earlier = found.get(_file_name(federation), {})
        found[_file_name(federation)] = federation | {"estimates": earlier.get("estimates", {})}
    for path in sorted(estimates.glob("*.json")):
        if path.name in found:
            found[path.name]["estimates"] |= json.loads(path.read_text())
    found = {name: federation for name, federation in found.items() if federation["estimates"]}
    return sorted(found.values(), key=lambda federation: (federation["seed"], federation["row"]))


def _file_name(federation: Federation) -> str:
    """Return the name of the files of truths.py and estimators.py."""
    return f"{slug(federation['row'])}-seed{federation['seed']}.json"


def reference(federation: Federation, utility: str, kind: str) -> Mapping[str, float] | None:
    """Return client to true value; None if the utility is not defined or was not measured."""
    if kind == "label counts":
        return label_scores(federation["counts"])
    if not federation["worth"]:
        return None
    worth = {int(coalition): values[utility] for coalition, values in federation["worth"].items()}
    if None in worth.values():
        return None
    clients = list(federation["counts"])
    truth = truth_from_worth(federation["row"], federation["seed"], utility, clients, worth)
    values: Mapping[str, float] = getattr(truth, kind)
    return values


def label_scores(counts: Mapping[str, list[int]]) -> dict[str, float]:
    """Return client to the score that its true label counts would give."""
    return dict(
        zip(counts, scores(torch.tensor(list(counts.values()), dtype=torch.float64)).tolist(), strict=True)
    )


def columns_of(
    federation: Federation, others: Sequence[Federation], utility: str, kind: str
) -> dict[str, Mapping[str, float]]:
    """Return column to estimates, with sizes and ceilings."""
    counts: Mapping[str, list[int]] = federation["counts"]
    columns = {
        **federation["estimates"],
        "data size": {name: float(sum(row)) for name, row in counts.items()},
        "label counts": label_scores(counts),
    }
    if truths := [truth for other in others if (truth := reference(other, utility, kind)) is not None]:
        columns["other seeds"] = {name: mean(truth[name] for truth in truths) for name in counts}
    return columns


def agreements(
    federations: Sequence[Federation], selection: Selection
) -> dict[str, dict[str, dict[str, float]]]:
    """Return column to measure to row to the mean over seeds."""
    _, utility, kind, is_selected = selection
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for federation in federations:
        truth = reference(federation, utility, kind) if is_selected(federation["row"]) else None
        if truth is None:
            continue
        others = [f for f in federations if f["row"] == federation["row"] and f is not federation]
        for column, estimates in columns_of(federation, others, utility, kind).items():
            for measure, value in measure_agreement(estimates, truth).items():
                if value is not None:
                    rows = values.setdefault(column, {}).setdefault(measure, {})
                    rows.setdefault(federation["row"], []).append(value)
    return {
        column: {
            measure: {row: mean(seeds) for row, seeds in rows.items()} for measure, rows in by_measure.items()
        }
        for column, by_measure in values.items()
    }


def summarise(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and its standard error."""
    return {
        "mean": mean(values),
        "error": stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
    }


def with_error(values: Sequence[float]) -> str:
    """Return mean and standard error, such as 0.81 ± 0.08."""
    error = f" ± {stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{mean(values):+.2f}{error}"


def format_table(federations: Sequence[Federation], selection: Selection) -> list[str]:
    """Return the lines of one part of the table."""
    found = agreements(federations, selection)
    if not found:
        return []
    if selection[2] == "label counts":
        found = {column: by_measure for column, by_measure in found.items() if column not in CEILINGS}
    rows = next(iter(found.values()))["Pearson"]
    lines = [f"**Part: {selection[0]}** ({len(rows)} rows)", ""]
    lines += ["| | " + " | ".join(AGREEMENT_MEASURES) + " |", "|---" * (len(AGREEMENT_MEASURES) + 1) + "|"]
    order = sorted(found, key=lambda column: (column in CEILINGS, -mean(found[column]["Pearson"].values())))
    for column in order:
        label = f"*{column}*" if column in CEILINGS else column
        cells = [with_error(list(found[column][measure].values())) for measure in AGREEMENT_MEASURES]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += ["", "| paired difference of Pearson | |", "|---|---|"]
    for first, second in PAIRS:
        if first in found and second in found:
            one, two = found[first]["Pearson"], found[second]["Pearson"]
            lines.append(f"| {first} - {second} | {with_error([one[row] - two[row] for row in one])} |")
    return [*lines, ""]


def format_rows(federations: Sequence[Federation], selection: Selection) -> list[str]:
    """Return Pearson's correlation row by row."""
    found = agreements(federations, selection)
    if not found:
        return []
    title = f"**Pearson's correlation, row by row: {selection[0]}**"
    lines = [title, "", "| | " + " | ".join(found) + " |"]
    lines.append("|---" * (len(found) + 1) + "|")
    for row in next(iter(found.values()))["Pearson"]:
        cells = [
            f"{by_measure['Pearson'][row]:+.2f}" if row in by_measure["Pearson"] else "–"
            for by_measure in found.values()
        ]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--many", action="store_true", help="the study of many clients")
    parser.add_argument("--truths", type=Path, default=Path("runs/head/truths"))
    parser.add_argument("--estimates", type=Path, default=Path("runs/head/estimates"))
    options = parser.parse_args()
    stored, table, selections = (
        ("many_clients.json", "many_clients_table.md", MANY)
        if options.many
        else ("truth.json", "table.md", SELECTIONS)
    )
    federations = collect(options.truths, options.estimates, HERE / stored)
    lines = [json.dumps(federation) for federation in federations]
    write_text(HERE / stored, "[\n" + ",\n".join(lines) + "\n]\n")
    num_rows = len(load_study(str(HERE / "many_clients.toml") if options.many else "estimators").rows)
    seeds = sorted({federation["seed"] for federation in federations})
    counts = {seed: sum(federation["seed"] == seed for federation in federations) for seed in seeds}
    by_seed = ", ".join(f"{seed}: {count} of {num_rows}" for seed, count in counts.items())
    text = [f"Federations by seed: {by_seed}", ""]
    for selection in selections:
        text += format_table(federations, selection)
    for selection in MANY if options.many else SELECTIONS[:1]:
        text += format_rows(federations, selection)
    write_text(HERE / table, "\n".join(text))
    correlations = {
        selection[0]: {
            column: summarise(list(by_measure["Pearson"].values()))
            for column, by_measure in agreements(federations, selection).items()
        }
        for selection in selections
    }
    document = {"federations": counts, "pearson": correlations}
    write_text((HERE / table).with_suffix(".json"), dump_json(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
