"""Write the page of all benchmarks, with plots, from their reports.

    python benchmarks/page.py

The script reads results/bench/*.json and `findings.md`, which is written by hand. It writes README.md and the plots
beside them. A benchmark without a report is shown as not measured yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from celm.base.files import write_text
from markdown_tables import markdown_table
from page_federations import render_large_round, render_many_nodes, render_signed_record
from page_safety import render_hostile_files, render_kills
from page_tables import Json, describe_environment, format_spread

FOLDER = Path("results/bench")
MILLION = 1e6


def render_training(reports: Json) -> str:
    draw_rivals(reports)
    parts = ["![celm compared with each rival; the red mark is the limit](training.svg)\n"]
    for model, report in reports.items():
        fastest = limit_seconds(report)
        ours = report["celm"]["seconds"]["median"]
        rows = [["celm", "1", f"{ours / fastest:.1f}", f"{ours:.3f}", f"{report['celm']['accuracy']:.3f}"]]
        for name, rival in report["rivals"].items():
            if "times" in rival:
                seconds = rival["seconds"]["median"]
                times = [format_spread(rival["times"], 1), f"{seconds / fastest:.1f}"]
                rows.append([name, *times, f"{seconds:.3f}", f"{rival['accuracy']:.3f}"])
            else:
                rows.append([name, str(next(iter(rival.values()))), "", "", ""])
        repeats_text = f"Turns: {report['repeats']}, rounds in each: {report['rounds']}."
        parts.append(f"### {model.upper()}\n\n{describe_environment(report)} {repeats_text}\n")
        header = [
            "engine",
            "time / time of celm",
            "time / time at the limit",
            "seconds per round",
            "accuracy",
        ]
        parts.append(markdown_table(header, rows))
        five = report["limit"]["layers"]["reached_with_five_clients"]["median"]
        parts.append(
            f"\nWith five clients and two workers, one worker waits: celm reaches {five:.2f} of the limit.\n"
            "Below, and in the targets, the number of clients is even.\n"
            "Accuracy is that after these few rounds, at one seed and with each engine's own order of batches.\n"
            "It shows that all engines train; it does not rank them."
        )
        reached = [
            [kind, format_spread(limit["gigaflops_per_second"], 0), format_spread(limit["reached"])]
            for kind, limit in report["limit"].items()
        ]
        parts.append("")
        parts.append(markdown_table(["limit", "GFLOP/s", "fraction that celm reaches"], reached))
        parts.append("")
        parts.append(render_targets(report["targets"]))
        parts.append("")
    return "\n".join(parts)


def draw_rivals(reports: Json) -> None:
    """Draw the ratio of each rival's time to celm's. The mark is the ratio at the limit."""
    figure, panels = plt.subplots(1, len(reports), figsize=(11, 5), layout="constrained", squeeze=False)
    for axes, (model, report) in zip(panels[0], reports.items(), strict=True):
        rivals = {name: row for name, row in report["rivals"].items() if "times" in row}
        names = sorted(rivals, key=lambda name: -rivals[name]["times"]["median"])
        times = [rivals[name]["times"] for name in names]
        error_bars = [
            [stats["median"] - stats["least"] for stats in times],
            [stats["most"] - stats["median"] for stats in times],
        ]
        limits = [rivals[name]["seconds"]["median"] / limit_seconds(report) for name in names]
        axes.barh(
            names, [stats["median"] for stats in times], xerr=error_bars, color="#7a9cc6", ecolor="#333333"
        )
        axes.plot(limits, range(len(names)), "|", color="#b03a2e", markersize=12, markeredgewidth=2)
        axes.axvline(1, color="#333333", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axes.minorticks_off()
        axes.set_title(f"{model.upper()}: celm is so many times as fast")
    save_figure(figure, "training")


def limit_seconds(report: Json) -> float:
    """Return the seconds of a round in which all cores compute only the layers' products, at their measured rate."""
    work = report["work"]
    rate: float = report["limit"]["layers"]["gigaflops_per_second"]["median"]
    return float(work["samples"] * work["flops_per_sample"] / 1e9 / rate)


def render_targets(rows: Json) -> str:
    table_rows = []
    for row in rows:
        status = {True: "reached", False: "**missed**", None: "not measured"}[row["reached"]]
        measured = "" if row["found"] is None else f"{row['found']:.2f}"
        table_rows.append([row["what"], str(row["wanted"]), measured, status])
    return markdown_table(["quantity", "target", "measured", ""], table_rows)


def render_main_study(report: Json) -> str:
    longest = report["longest"]
    rows = [
        ["runs measured, of 75", str(report["runs"])],
        ["workers, one core each", str(report["workers"])],
        ["minutes", f"{report['wall_seconds'] / 60:.1f}"],
        ["whole table, hours", f"**{report['hours_of_the_table']:.2f}**"],
        [f"critical path: {longest['run']}, seconds", f"{longest['seconds']:.0f}"],
        ["busy cores", f"{report['seconds_of_all_runs'] / report['wall_seconds']:.2f}"],
        ["accuracies equal to those in results/main", str(report["same_accuracy_as_committed"])],
    ]
    table_text = markdown_table(["FashionMNIST, `main` at the paper's scale", ""], rows)
    return f"{describe_environment(report)}\n\n{table_text}"


def render_probing(report: Json) -> str:
    rows = [
        [
            row["network"],
            str(row["models"]),
            format_spread(row["times_the_loop"], 1),
            format_spread(row["of_the_limit"]),
            f"{row['celm_ms_per_step']:.2f}",
        ]
        for row in report["probes"]
    ]
    shares = [
        [name, f"{row['probe_seconds']:.2f}", f"{row['round_seconds']:.2f}", f"{100 * row['share']:.1f} %"]
        for name, row in report["share_of_a_run"].items()
    ]
    return "\n\n".join(
        [
            describe_environment(report),
            markdown_table(["network", "models", "x the loop", "of the limit", "ms per step"], rows),
            markdown_table(
                ["probe", "seconds", "seconds of a round", "share of 100 rounds, 5 probed"], shares
            ),
        ]
    )


def render_cheaper_probes(report: Json) -> str:
    def format_rows(rows: Json) -> str:
        return markdown_table(
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
    for row in report["fashion_mnist"]:
        if row["probe"] != "whole":
            axes.plot(row["cost_in_steps"], max(row["largest_error_but_iid"], 1e-3), "o", color="C0")
            point = (row["cost_in_steps"], max(row["largest_error_but_iid"], 1e-3))
            axes.annotate(row["probe"], point, fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(
        xscale="log", yscale="log", xlabel="part of the whole probe's steps", ylabel="largest error, points"
    )
    save_figure(figure, "cheaper_probes")
    weights = report["weights_after_the_warm_up"]
    sections = [
        describe_environment(report),
        "FashionMNIST, errors in points of weight:",
        format_rows(report["fashion_mnist"]),
    ]
    sections.append("![cost and error of each](cheaper_probes.svg)")
    if report["emnist47"]:
        sections += ["Samples of classes, EMNIST with 47:", format_rows(report["emnist47"])]
    if weights:
        rows = []
        for name in dict.fromkeys(row["probe"] for row in weights):
            probe_rows = [row for row in weights if row["probe"] == name]
            errors = sorted(row["error"] for row in probe_rows)
            ranks = [row["rank"] for row in probe_rows if not row["where"].startswith("iid")]
            rows.append(
                [
                    name,
                    f"{errors[len(errors) // 2]:.2f}",
                    f"{errors[-1]:.2f}",
                    f"{sum(ranks) / len(ranks):.3f}",
                ]
            )
        sections.append(
            "Weights after a warm-up with that probe in all rounds, compared with the whole probe:"
        )
        sections.append(markdown_table(["probe", "error, median", "largest", "rank, mean but IID"], rows))
    return "\n\n".join(sections)


def render_scaling(report: Json) -> str:
    sizes = {"clients": "clients", "classes": "classes", "parameters": "parameters", "pixels": "side"}
    figure, panels = plt.subplots(2, 4, figsize=(12, 5.5), layout="constrained")
    for (time, memory), (curve, size) in zip(panels.T, sizes.items(), strict=True):
        rows = [row for row in report["points"] if row["curve"] == curve]
        x = [row[size] for row in rows]
        time.plot(x, [1000 * row["seconds_of_a_step"] for row in rows], "o", label="measured")
        time.plot(x, [1000 * row["predicted_seconds"] for row in rows], "--", label="cost model")
        memory.plot(x, [row["peak_megabytes"] for row in rows], "o", label="peak")
        tensor_megabytes = [row["models_megabytes"] + row["inputs_megabytes"] for row in rows]
        memory.plot(x, tensor_megabytes, "--", label="models and inputs")
        time.set(xscale="log", yscale="log", title=f"{curve}: power {report['powers'][curve]['b']:.2f}")
        memory.set(xscale="log", yscale="log", xlabel=size)
    panels[0][0].set_ylabel("ms a step")
    panels[1][0].set_ylabel("MB")
    panels[0][0].legend(fontsize=7)
    panels[1][0].legend(fontsize=7)
    save_figure(figure, "scaling")
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
        for row in report["points"]
    ]
    header = ["curve", "N", "K", "million parameters", "px", "ms per step", "measured / model", "MB"]
    return "\n\n".join(
        [describe_environment(report), "![time and memory](scaling.svg)", markdown_table(header, rows)]
    )


def render_averaging(report: Json) -> str:
    rows = [
        [
            name,
            format_spread(row["times_the_limit"]),
            format_spread(row["stack_over_celm"], 1),
            format_spread(row["gigabytes_per_second"], 1),
        ]
        for name, row in report["in_memory"].items()
    ]
    files = [
        [f"{row['reads']:,}", f"{row['seconds']:.1f}", f"{row['peak_megabytes']:.0f}"]
        for row in report["from_files"]
    ]
    return "\n\n".join(
        [
            describe_environment(report),
            markdown_table(
                ["20 models of", "time / time at the bandwidth", "time of stack / celm", "GB/s read"], rows
            ),
            markdown_table(["models of 100 MB from files", "seconds", "peak MB"], files),
        ]
    )


def render_server_step(report: Json) -> str:
    rows = [
        [rule, f"{100 * row['server']:.1f} %", f"{100 * row['validation']:.1f} %"]
        for rule, row in report.items()
    ]
    return markdown_table(["rule", "server step, share of a round", "validation"], rows)


def render_flower_overhead(report: Json) -> str:
    rows = [
        [name.replace("-", ", ") + " clients", f"{1000 * row['wall']:.0f}", f"{100 * row['share']:.1f} %"]
        for name, row in report.items()
        if isinstance(row, dict)
    ]
    return markdown_table(["strategy", "ms per round", "share of the strategy itself"], rows)


def render_audit_memory(report: Json) -> str:
    rows = [
        [str(row["clients"]), f"{row['model_megabytes']:.0f}", f"{row['peak_resident_megabytes']:.0f}"]
        for row in report
    ]
    return markdown_table(["clients", "MB per model", "peak MB"], rows)


SECTIONS: dict[str, tuple[str, Callable[[Json], str]]] = {
    "training": ("Training, compared with the limit and with rivals", render_training),
    "main_study": ("A whole table of the paper", render_main_study),
    "probing": ("The probe, compared with a loop and with its limit", render_probing),
    "cheaper_probes": ("Cheaper probes", render_cheaper_probes),
    "scaling": ("Time and memory of a probe by size", render_scaling),
    "averaging": ("The weighted mean", render_averaging),
    "server_step": ("The server step of each rule", render_server_step),
    "flower_overhead": ("Overhead of the Flower strategy", render_flower_overhead),
    "large_round": ("A round of many clients with a model of 100 MB", render_large_round),
    "many_nodes": ("A federation of many nodes, some of which fail", render_many_nodes),
    "signed_record": ("A signed record", render_signed_record),
    "audit_memory": ("Memory of an audit", render_audit_memory),
    "hostile_files": ("Hostile files", render_hostile_files),
    "kills": ("Kills at random moments", render_kills),
}


def save_figure(figure: Any, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "celm"
    findings = FOLDER / "findings.md"
    sections = ["# Benchmarks"]
    if findings.exists():
        sections.append(findings.read_text().strip())
    sections.append(
        "## How to read the tables\n\n"
        "Speeds are ratios within one run, in which all engines take turns: median (minimum to maximum).\n"
        "Do not compare absolute times of different sections: a shared machine measured them at different hours.\n"
        "`make bench` repeats all benchmarks and writes this page. The protocol is at the top of each script."
    )
    for name, (title, render) in SECTIONS.items():
        path = FOLDER / f"{name}.json"
        sections.append(f"## {title}\n\n`python benchmarks/{name}.py`, [{name}.json]({name}.json)")
        sections.append(render(json.loads(path.read_text())) if path.exists() else "Not measured yet.")
    write_text(FOLDER / "README.md", "\n\n".join(sections) + "\n")
    print(FOLDER / "README.md")


if __name__ == "__main__":
    main()
