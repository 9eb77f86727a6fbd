"""The page of all benchmarks, with plots, from what they have written.

    python benchmarks/page.py

Reads results/bench/*.json and `findings.md`, which is written by hand, and writes README.md and the plots beside them.
A benchmark that has not been run is said to be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from celm.base.files import write_text

FOLDER = Path("results/bench")
MILLION = 1e6
Json = Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    first, second, *rest = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([first, second.replace(" ", ""), *rest])


def spread(found: Json, digits: int = 2) -> str:
    """Median, and least to most."""
    return f"{found['median']:.{digits}f} ({found['least']:.{digits}f} to {found['most']:.{digits}f})"


def where(found: Json) -> str:
    machine = found["machine"]
    load = ", ".join(f"{value:.1f}" for value in machine["load_before"])
    return (
        f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['vector_instructions']}, torch"
        f" {machine['torch']}; load before: {load}."
    )


def training(found: Json) -> str:
    draw_rivals(found)
    parts = ["![celm beside each rival; the red mark is the limit](training.svg)\n"]
    for model, report in found.items():
        least = least_seconds(report)
        ours = report["celm"]["seconds"]["median"]
        rows = [["celm", "1", f"{ours / least:.1f}", f"{ours:.3f}", f"{report['celm']['accuracy']:.3f}"]]
        for name, rival in report["rivals"].items():
            if "times" in rival:
                seconds = rival["seconds"]["median"]
                times = [spread(rival["times"], 1), f"{seconds / least:.1f}"]
                rows.append([name, *times, f"{seconds:.3f}", f"{rival['accuracy']:.3f}"])
            else:
                rows.append([name, str(next(iter(rival.values()))), "", "", ""])
        counted = f"Turns: {report['repeats']}, rounds in each: {report['rounds']}."
        parts.append(f"### {model.upper()}\n\n{where(report)} {counted}\n")
        head = [
            "who",
            "celm is so many times as fast",
            "an engine at the limit would be",
            "seconds a round",
            "accuracy",
        ]
        parts.append(table(head, rows))
        five = report["limit"]["layers"]["reached_with_five_clients"]["median"]
        parts.append(
            f"\nA round has five clients, of which two workers leave one waiting: {five:.2f} of the limit. Below, and"
            " in the targets, clients are even in number. Accuracy is that after these few rounds, at one seed and each"
            " side's own order of batches: it shows that all of them train, and ranks nobody."
        )
        reached = [
            [kind, spread(limit["gigaflops_per_second"], 0), spread(limit["reached"])]
            for kind, limit in report["limit"].items()
        ]
        parts.append("")
        parts.append(table(["limit", "GFLOP/s", "part of it that celm reaches"], reached))
        parts.append("")
        parts.append(targets(report["targets"]))
        parts.append("")
    return "\n".join(parts)


def draw_rivals(found: Json) -> None:
    """How many times as fast celm is as each rival; the mark is where the limit would be."""
    figure, panels = plt.subplots(1, len(found), figsize=(11, 5), layout="constrained", squeeze=False)
    for axes, (model, report) in zip(panels[0], found.items(), strict=True):
        rivals = {name: row for name, row in report["rivals"].items() if "times" in row}
        names = sorted(rivals, key=lambda name: -rivals[name]["times"]["median"])
        times = [rivals[name]["times"] for name in names]
        least = [
            [each["median"] - each["least"] for each in times],
            [each["most"] - each["median"] for each in times],
        ]
        limits = [rivals[name]["seconds"]["median"] / least_seconds(report) for name in names]
        axes.barh(names, [each["median"] for each in times], xerr=least, color="#7a9cc6", ecolor="#333333")
        axes.plot(limits, range(len(names)), "|", color="#b03a2e", markersize=12, markeredgewidth=2)
        axes.axvline(1, color="#333333", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axes.minorticks_off()
        axes.set_title(f"{model.upper()}: celm is so many times as fast")
    save(figure, "training")


def least_seconds(report: Json) -> float:
    """Of a round, if all cores did nothing but the layers' products, at the rate measured for these."""
    work = report["work"]
    rate: float = report["limit"]["layers"]["gigaflops_per_second"]["median"]
    return float(work["samples"] * work["flops_per_sample"] / 1e9 / rate)


def targets(rows: Json) -> str:
    shown = []
    for row in rows:
        met = {True: "reached", False: "**missed**", None: "not measured"}[row["reached"]]
        found = "" if row["found"] is None else f"{row['found']:.2f}"
        shown.append([row["what"], str(row["wanted"]), found, met])
    return table(["target", "wanted", "found", ""], shown)


def main_study(found: Json) -> str:
    longest = found["longest"]
    rows = [
        ["runs measured, of 75", str(found["runs"])],
        ["workers, a core each", str(found["workers"])],
        ["minutes", f"{found['wall_seconds'] / 60:.1f}"],
        ["whole table, hours", f"**{found['hours_of_the_table']:.2f}**"],
        [f"critical path: {longest['run']}, seconds", f"{longest['seconds']:.0f}"],
        ["cores kept busy", f"{found['seconds_of_all_runs'] / found['wall_seconds']:.2f}"],
        ["accuracies equal to those in results/main", str(found["same_accuracy_as_committed"])],
    ]
    shown = table(["FashionMNIST, `main` at the paper's scale", ""], rows)
    return f"{where(found)}\n\n{shown}"


def probing(found: Json) -> str:
    rows = [
        [
            row["network"],
            str(row["models"]),
            spread(row["times_the_loop"], 1),
            spread(row["of_the_limit"]),
            f"{row['celm_ms_per_step']:.2f}",
        ]
        for row in found["probes"]
    ]
    shares = [
        [name, f"{row['probe_seconds']:.2f}", f"{row['round_seconds']:.2f}", f"{100 * row['share']:.1f} %"]
        for name, row in found["share_of_a_run"].items()
    ]
    return "\n\n".join(
        [
            where(found),
            table(["network", "models", "x the loop", "of the limit", "ms a step"], rows),
            table(["probe", "seconds", "seconds of a round", "share of 100 rounds, 5 probed"], shares),
        ]
    )


def cheaper_probes(found: Json) -> str:
    def shown(rows: Json) -> str:
        return table(
            ["probe", "steps", "time", "error, mean", "largest", "but IID", "rank, mean", "lowest", "safe"],
            [
                [
                    row["probe"],
                    f"{row['cost_in_steps']:.2f}",
                    f"{row['cost_in_seconds']:.2f}",
                    f"{row['mean_error']:.2f}",
                    f"{row['largest_error']:.2f}",
                    f"{row['largest_error_but_iid']:.2f}",
                    f"{row['mean_rank_but_iid']:.3f}",
                    f"{row['lowest_rank_but_iid']:.2f}",
                    "yes" if row["safe"] else "no",
                ]
                for row in rows
            ],
        )

    figure, axes = plt.subplots(figsize=(7, 4))
    for row in found["fashion_mnist"]:
        if row["probe"] != "whole":
            axes.plot(row["cost_in_steps"], max(row["largest_error_but_iid"], 1e-3), "o", color="C0")
            place = (row["cost_in_steps"], max(row["largest_error_but_iid"], 1e-3))
            axes.annotate(row["probe"], place, fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(
        xscale="log", yscale="log", xlabel="part of the whole probe's steps", ylabel="largest error, points"
    )
    save(figure, "cheaper_probes")
    weights = found["weights_after_the_warm_up"]
    said = [where(found), "FashionMNIST, errors in points of weight:", shown(found["fashion_mnist"])]
    said.append("![cost and error of each](cheaper_probes.svg)")
    if found["emnist47"]:
        said += ["Samples of classes, EMNIST with 47:", shown(found["emnist47"])]
    if weights:
        rows = []
        for name in dict.fromkeys(row["probe"] for row in weights):
            mine = [row for row in weights if row["probe"] == name]
            errors = sorted(row["error"] for row in mine)
            ranks = [row["rank"] for row in mine if not row["where"].startswith("iid")]
            rows.append(
                [
                    name,
                    f"{errors[len(errors) // 2]:.2f}",
                    f"{errors[-1]:.2f}",
                    f"{sum(ranks) / len(ranks):.3f}",
                ]
            )
        said.append(
            "Weights after a warm-up done with that probe throughout, against one with the whole probe:"
        )
        said.append(table(["probe", "error, median", "largest", "rank, mean but IID"], rows))
    return "\n\n".join(said)


def scaling(found: Json) -> str:
    sizes = {"clients": "clients", "classes": "classes", "parameters": "parameters", "pixels": "side"}
    figure, panels = plt.subplots(2, 4, figsize=(12, 5.5), layout="constrained")
    for (time, memory), (curve, size) in zip(panels.T, sizes.items(), strict=True):
        rows = [row for row in found["points"] if row["curve"] == curve]
        x = [row[size] for row in rows]
        time.plot(x, [1000 * row["seconds_of_a_step"] for row in rows], "o", label="measured")
        time.plot(x, [1000 * row["predicted_seconds"] for row in rows], "--", label="cost model")
        memory.plot(x, [row["peak_megabytes"] for row in rows], "o", label="peak")
        held = [row["models_megabytes"] + row["inputs_megabytes"] for row in rows]
        memory.plot(x, held, "--", label="models and inputs")
        time.set(xscale="log", yscale="log", title=f"{curve}: power {found['powers'][curve]['b']:.2f}")
        memory.set(xscale="log", yscale="log", xlabel=size)
    panels[0][0].set_ylabel("ms a step")
    panels[1][0].set_ylabel("MB")
    panels[0][0].legend(fontsize=7)
    panels[1][0].legend(fontsize=7)
    save(figure, "scaling")
    rows = [
        [
            row["curve"],
            f"{row['clients']:,}",
            f"{row['classes']:,}",
            f"{row['parameters'] / MILLION:.2f}",
            str(row["side"]),
            f"{1000 * row['seconds_of_a_step']:.1f}",
            f"{row['seconds_of_a_step'] / row['predicted_seconds']:.2f}",
            f"{row['peak_megabytes']:.0f}",
        ]
        for row in found["points"]
    ]
    head = ["curve", "N", "K", "million parameters", "px", "ms a step", "measured / model", "MB"]
    return "\n\n".join([where(found), "![time and memory](scaling.svg)", table(head, rows)])


def averaging(found: Json) -> str:
    rows = [
        [
            name,
            spread(row["times_the_limit"]),
            spread(row["stack_over_celm"], 1),
            spread(row["gigabytes_per_second"], 1),
        ]
        for name, row in found["in_memory"].items()
    ]
    files = [
        [f"{row['reads']:,}", f"{row['seconds']:.1f}", f"{row['peak_megabytes']:.0f}"]
        for row in found["from_files"]
    ]
    return "\n\n".join(
        [
            where(found),
            table(["20 models of", "x the time at the bandwidth", "stack over celm", "GB/s read"], rows),
            table(["models of 100 MB from files", "seconds", "peak MB"], files),
        ]
    )


def server_step(found: Json) -> str:
    rows = [
        [rule, f"{100 * row['server']:.1f} %", f"{100 * row['validation']:.1f} %"]
        for rule, row in found.items()
    ]
    return table(["rule", "server step, share of a round", "validation"], rows)


def flower_overhead(found: Json) -> str:
    rows = [
        [name.replace("-", ", ") + " clients", f"{1000 * row['wall']:.0f}", f"{100 * row['share']:.1f} %"]
        for name, row in found.items()
        if isinstance(row, dict)
    ]
    return table(["strategy", "ms a round", "share of the strategy itself"], rows)


def audit_memory(found: Json) -> str:
    rows = [
        [str(row["clients"]), f"{row['model_megabytes']:.0f}", f"{row['peak_resident_megabytes']:.0f}"]
        for row in found
    ]
    return table(["clients", "MB of a model", "peak MB"], rows)


PARTS: dict[str, tuple[str, Callable[[Json], str]]] = {
    "training": ("Training, beside the limit and beside rivals", training),
    "main_study": ("A whole table of the paper", main_study),
    "probing": ("The probe, beside the loop and beside its limit", probing),
    "cheaper_probes": ("Cheaper probes", cheaper_probes),
    "scaling": ("How a probe grows", scaling),
    "averaging": ("The weighted mean", averaging),
    "server_step": ("The server's step of each rule", server_step),
    "flower_overhead": ("What the Flower strategy costs", flower_overhead),
    "audit_memory": ("Memory of an audit", audit_memory),
}


def save(figure: Any, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "celm"
    findings = FOLDER / "findings.md"
    said = ["# Benchmarks", "Speeds are ratios within one run, sides taking turns: median (least to most)."]
    said.append(
        "Absolute times of different sections were taken at different hours of a shared machine and do not compare."
    )
    said.append("`make bench` repeats all of it and makes this page; the protocol is on top of each script.")
    if findings.exists():
        said.append(findings.read_text().strip())
    for name, (title, show) in PARTS.items():
        path = FOLDER / f"{name}.json"
        said.append(f"## {title}\n\n`python benchmarks/{name}.py`, [{name}.json]({name}.json)")
        said.append(show(json.loads(path.read_text())) if path.exists() else "Not measured yet.")
    write_text(FOLDER / "README.md", "\n\n".join(said) + "\n")
    print(FOLDER / "README.md")


if __name__ == "__main__":
    main()
