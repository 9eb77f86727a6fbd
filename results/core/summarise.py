"""Turn `cells/` into the tables of README.md: python results/core/summarise.py."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).parent
PAPER = {
    ("pls", "fedavg"): "80.62 ± 0.52",
    ("pls", "celm"): "83.70 ± 0.19",
    ("sls", "fedavg"): "83.13 ± 2.61",
    ("sls", "celm"): "87.00 ± 1.14",
    ("maverick", "fedavg"): "84.79 ± 0.24",
    ("maverick", "celm"): "87.32 ± 0.10",
    ("iid", "fedavg"): "89.23 ± 0.09",
    ("iid", "celm"): "89.16 ± 0.05",
}
RARE = {"fedavg": "81.76 ± 0.68", "celm": "90.77 ± 0.24"}


def load_cells(split: str, rule: str) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text())
        for path in sorted(HERE.glob(f"cells/fashion_mnist-{split}-{rule}-*.json"))
    ]


def mean_and_std(values: list[float]) -> str:
    return f"{100 * mean(values):.2f} ± {100 * stdev(values):.2f}"


def accuracy_table() -> list[str]:
    lines = [
        "| split | metric | FedAvg | CELM | gain | paper: FedAvg | paper: CELM |",
        "|---|---|---|---|---|---|---|",
    ]
    for split in ("pls", "sls", "maverick", "iid"):
        paper = {rule: PAPER[split, rule] for rule in ("fedavg", "celm")}
        metrics = {"accuracy": paper}
        if split == "maverick":
            metrics = {"balanced_accuracy": paper, "rare_class_accuracy": RARE}
        for metric, printed in metrics.items():
            ours = {rule: [cell[metric] for cell in load_cells(split, rule)] for rule in ("fedavg", "celm")}
            gain = 100 * (mean(ours["celm"]) - mean(ours["fedavg"]))
            name = metric.replace("_", " ")
            row = (split, name, mean_and_std(ours["fedavg"]), mean_and_std(ours["celm"]), f"{gain:+.2f}")
            lines.append("| " + " | ".join((*row, printed["fedavg"], printed["celm"])) + " |")
    return lines


def evidence_table() -> list[str]:
    lines = [
        "| split | seed | labels held | weight of each client | evidence on absent classes, % of all |",
        "|---|---|---|---|---|",
    ]
    for split in ("pls", "sls", "maverick"):
        for cell in load_cells(split, "celm"):
            counts, evidence = cell["counts"], cell["evidence"]
            labels = [sum(count > 0 for count in counts[client]) for client in counts]
            weights = [f"{cell['weights'][client]:.3f}" for client in counts]
            pairs = [(q, n) for c in counts for q, n in zip(evidence[c], counts[c], strict=True)]
            absent = 100 * sum(q for q, n in pairs if not n) / sum(q for q, _ in pairs)
            row = (split, str(cell["seed"]), ", ".join(map(str, labels)), ", ".join(weights), f"{absent:.1f}")
            lines.append("| " + " | ".join(row) + " |")
    return lines


def accuracy_curve() -> list[str]:
    lines = ["| round | FedAvg | CELM |", "|---|---|---|"]
    runs = [
        json.loads((HERE / f"cells/cifar10-pls-{rule}-42.json").read_text()) for rule in ("fedavg", "celm")
    ]
    for number in (1, 2, 5, 10, 15, 20):
        values = [f"{100 * cell['accuracy_by_round'][number - 1]:.2f}" for cell in runs]
        lines.append("| " + " | ".join((str(number), *values)) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join([*accuracy_table(), "", *evidence_table(), ""]))
    if len(list(HERE.glob("cells/cifar10-*.json"))) == 2:
        print("\n".join(accuracy_curve()))
