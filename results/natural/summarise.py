"""Turn the collected runs into the tables of README.md: python results/natural/summarise.py."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from celm.metrics.fairness import bottom_hit, pearson, spearman, top_hit

HERE = Path(__file__).parent
METHODS = {"fedavg": "FedAvg", "shapfed": "ShapFed", "celm": "CELM", "celm_head": "CELM, head evidence"}
METRICS = ("accuracy", "balanced_accuracy")
RARE_SHARE = 0.02
"""A class with a smaller share of all samples is called rare. In `hapt`, the six postural transitions are."""


def load_runs(dataset: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Return method to seed to run of a dataset."""
    path = HERE / f"{dataset}.json"
    runs: dict[str, dict[int, dict[str, Any]]] = {method: {} for method in METHODS}
    for name, run in (json.loads(path.read_text()) if path.exists() else {}).items():
        _, method, _ = name.split("-")
        runs[method][run["seed"]] = run
    return runs


def load_truth(dataset: str, utility: str = "accuracy") -> list[dict[str, Any]]:
    """Return the truths of a dataset, one for each seed."""
    truths = json.loads((HERE / "truth.json").read_text())["truth"]
    return [truth for truth in truths if truth["row"] == f"{dataset} natural" and truth["utility"] == utility]


def accuracy_table(dataset: str) -> list[str]:
    """Return accuracies in percent, and the difference to FedAvg at the same seeds with its standard error."""
    lines = ["| method | seeds | accuracy | balanced accuracy | accuracy - FedAvg |", "|---|---|---|---|---|"]
    runs = load_runs(dataset)
    for method, title in METHODS.items():
        own = runs[method]
        if not own:
            continue
        figures = [format_spread([100 * run[metric] for run in own.values()]) for metric in METRICS]
        paired = [
            100 * (run["accuracy"] - runs["fedavg"][seed]["accuracy"])
            for seed, run in own.items()
            if seed in runs["fedavg"]
        ]
        difference = "" if method == "fedavg" else format_error(paired)
        lines.append(f"| {title} | {len(own)} | {figures[0]} | {figures[1]} | {difference} |")
    return lines


def format_spread(values: list[float], digits: int = 1) -> str:
    """Return mean and standard deviation."""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def format_error(differences: list[float]) -> str:
    """Return the mean of paired differences and its standard error."""
    if len(differences) < 2:
        return f"{mean(differences):+.1f}"
    return f"{mean(differences):+.1f} ± {stdev(differences) / len(differences) ** 0.5:.1f}"


def client_table(dataset: str) -> list[str]:
    """Return, for each client, its samples, accuracy alone, Shapley value and weights, as means over seeds."""
    truths, runs = load_truth(dataset), load_runs(dataset)
    counts = next(iter(runs["fedavg"].values()))["counts"]
    titles = " | ".join(METHODS.values())
    lines = [
        f"| client | samples | accuracy alone | Shapley value | leave-one-out | {titles} |",
        "|---|---|---|---|---|" + "---|" * len(METHODS),
    ]
    for position, client in enumerate(truths[0]["shapley"]):
        alone = format_spread([100 * truth["worth"][str(position)] for truth in truths])
        shapley = format_spread([100 * truth["shapley"][client] for truth in truths])
        left_out = format_spread([100 * truth["leave_one_out"][client] for truth in truths])
        weights = [
            format_spread([run["weights"][client] for run in runs[method].values()], 2) for method in METHODS
        ]
        cells = (client, str(sum(counts[client])), alone, shapley, left_out, *weights)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def agreement_table(dataset: str, utility: str = "accuracy") -> list[str]:
    """Return the agreement of weights and sizes with the Shapley and leave-one-out values of the same seed."""
    truths, runs = load_truth(dataset, utility), load_runs(dataset)
    sizes = {client: sum(own) for client, own in next(iter(runs["fedavg"].values()))["counts"].items()}
    lines = [
        "| weights | Pearson | Spearman | top-1 | bottom-1 | leave-one-out: Pearson | Spearman |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, title in METHODS.items():
        estimates = [runs[method][truth["seed"]]["weights"] for truth in truths]
        lines.append(f"| {title} | {_agreement(estimates, truths)} |")
    lines.append(f"| numbers of samples, for comparison | {_agreement([sizes] * len(truths), truths)} |")
    return lines


def _agreement(estimates: list[dict[str, float]], truths: list[dict[str, Any]]) -> str:
    """Return six measures as table cells; correlations of constant estimates count as 0."""
    measures = [(measure, "shapley") for measure in (pearson, spearman, top_hit, bottom_hit)]
    measures += [(pearson, "leave_one_out"), (spearman, "leave_one_out")]
    cells = []
    for measure, reference in measures:
        pairs = zip(estimates, truths, strict=True)
        values = [measure(estimate, truth[reference]) or 0.0 for estimate, truth in pairs]
        cells.append(format_spread(values, 2))
    return " | ".join(cells)


def weights_table(dataset: str) -> list[str]:
    """Return the range of mean weights, and what the weights of a seed correlate with, as means over seeds."""
    lines = [
        "| weights | smallest | largest | Pearson: samples | samples of rare classes | weights of another seed |",
        "|---|---|---|---|---|---|",
    ]
    runs = load_runs(dataset)
    counts = next(iter(runs["fedavg"].values()))["counts"]
    totals = [sum(own[label] for own in counts.values()) for label in range(len(next(iter(counts.values()))))]
    rare = [label for label, total in enumerate(totals) if total < RARE_SHARE * sum(totals)]
    samples = {client: float(sum(own)) for client, own in counts.items()}
    rare_samples = {client: float(sum(own[label] for label in rare)) for client, own in counts.items()}
    for method, title in METHODS.items():
        weights = [run["weights"] for run in runs[method].values()]
        means = [mean(own[client] for own in weights) for client in counts]
        cells = [f"{min(means):.3f}", f"{max(means):.3f}"]
        cells += [
            format_spread([pearson(own, reference) or 0.0 for own in weights], 2)
            for reference in (samples, rare_samples)
        ]
        cells.append(f"{mean(pearson(one, other) or 0.0 for one, other in combinations(weights, 2)):.2f}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def tables() -> dict[str, list[str]]:
    """Return every table of the page by its title."""
    found = {}
    for dataset in ("heart", "fsdd", "hapt"):
        if (HERE / f"{dataset}.json").exists():
            found[f"{dataset}, accuracy"] = accuracy_table(dataset)
        if dataset != "hapt" and load_truth(dataset):
            found[f"{dataset}, clients"] = client_table(dataset)
            found[f"{dataset}, agreement"] = agreement_table(dataset)
        elif dataset == "hapt":
            found["hapt, weights"] = weights_table(dataset)
    return found


if __name__ == "__main__":
    for title, lines in tables().items():
        print(title, *lines, sep="\n", end="\n\n")
