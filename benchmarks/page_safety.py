"""Render the reports on hostile files and on killed processes for the page of the benchmarks."""

from __future__ import annotations

from typing import Any

from markdown_tables import markdown_table

Json = Any


def render_hostile_files(report: Json) -> str:
    """Return a table of every file: what it is, what becomes of it, and its cost."""
    rows = [
        [
            row["format"],
            row["file"],
            f"{row['file_megabytes']:.1f}",
            row["outcome"].partition(":")[0],
            f"{row['peak_megabytes']:.0f}",
            f"{row['cpu_seconds']:.2f}",
        ]
        for row in report
    ]
    return markdown_table(["format", "file", "MB", "", "peak MB above the process", "CPU seconds"], rows)


def render_worst_files(report: Json) -> str:
    """Return a table of each format: the honest file, and the worst ones in memory and in CPU time."""
    rows = []
    for format_name in dict.fromkeys(row["format"] for row in report):
        files = [row for row in report if row["format"] == format_name]
        honest = next(row for row in files if row["file"].startswith("honest"))
        hostile = [row for row in files if not row["file"].startswith("honest")]
        largest = max(hostile, key=lambda row: row["peak_megabytes"])
        slowest = max(hostile, key=lambda row: row["cpu_seconds"])
        rows.append(
            [
                format_name,
                f"{honest['peak_megabytes']:.0f} MB, {honest['cpu_seconds']:.2f} s",
                f"{largest['peak_megabytes']:.0f} MB: {largest['file']} ({largest['file_megabytes']:.1f} MB)",
                f"{slowest['cpu_seconds']:.2f} s: {slowest['file']} ({slowest['file_megabytes']:.1f} MB)",
            ]
        )
    return markdown_table(["format", "honest file", "most memory", "most CPU time"], rows)


def render_kills(report: Json) -> str:
    """Return a table of both commands: kills, trials, and differences."""
    keys = ("kills", "trials", "most_kills_of_a_trial", "files_compared", "different")
    header = [
        "command",
        "kills",
        "trials",
        "most kills of a trial",
        "files compared",
        "trials with a difference",
    ]
    rows = [[f"`celm {name}`", *(str(row[key]) for key in keys)] for name, row in report.items()]
    return markdown_table(header, rows)
