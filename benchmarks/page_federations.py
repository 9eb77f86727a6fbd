"""The parts of the page of all benchmarks about large federations."""

from __future__ import annotations

from markdown_tables import markdown_table
from page_tables import Json, describe_environment


def render_large_round(report: Json) -> str:
    rows = [
        [
            name,
            f"{row['cpu_seconds']:.1f}",
            f"{1000 * row['cpu_seconds'] / row['clients']:.0f}",
            f"{row['peak_megabytes']:.0f}",
        ]
        for name, row in report.items()
        if name != "machine"
    ]
    table = markdown_table(["round", "processor seconds", "ms per client", "peak MB"], rows)
    return f"{describe_environment(report)}\n\n{table}"


def render_many_nodes(report: Json) -> str:
    strategies = {name: report[name] for name in ("celm", "fedavg") if name in report}
    rows = [
        [
            name,
            f"{row['cpu_seconds_median']:.2f}",
            f"{row['server_app_peak_megabytes']:.0f}",
            f"{row['super_link_peak_megabytes']:.0f}",
            f"{row['round_seconds_median']:.0f}",
            f"{100 * row['accuracy'][-1]:.1f} %",
        ]
        for name, row in strategies.items()
    ]
    header = ["strategy", "processor seconds per round", "ServerApp, peak MB", "SuperLink, peak MB"]
    table = markdown_table([*header, "seconds per round", "accuracy"], rows)
    record = report["record"]
    used = ", ".join(map(str, record["used"]))
    failures = ", ".join(str(failure["round"]) for failure in report["failures"])
    return (
        f"{describe_environment(report)} {report['nodes']} nodes; killed in rounds {failures}.\n\n{table}\n\n"
        f"Updates used in each round: {used}. A SuperNode takes {report['celm']['super_node_megabytes']:.0f} MB, "
        f"a ClientApp at most {record['client_app_peak_megabytes']:.0f} MB."
    )


def render_signed_record(report: Json) -> str:
    steps = ("sign", "send", "check", "restart", "proof", "verify")
    times = [
        [
            f"{point['clients']:,}",
            str(point["rounds"]),
            *(f"{point['milliseconds'][step]:.1f}" for step in steps),
        ]
        for point in report["points"]
    ]
    sizes = [
        [
            f"{point['clients']:,}",
            *(f"{point['bytes'][part]:,}" for part in ("message", "head", "line", "proof")),
        ]
        for point in report["points"]
    ]
    return "\n\n".join(
        [
            f"{describe_environment(report)} Milliseconds of processor time; the script says what each step is.",
            markdown_table(["clients", "rounds", *steps], times),
            "Bytes: what each message gets longer by, a line of heads.jsonl, a line of rounds.jsonl, and a proof.",
            markdown_table(["clients", "message", "head", "line", "proof"], sizes),
        ]
    )
