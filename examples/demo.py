"""The first minute: who contributed what to a federation of five, from their models alone.

Runs CELM and plain averaging on scikit-learn's digits (nothing to download), dealt so that clients know
different numbers of classes, and shows the evidence beside the truth that the server never saw.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from rich.progress import Progress

import celm
from celm.cli.run import show
from celm.report.html import write_report


def main() -> None:
    place = next(path for i in itertools.count(1) if not (path := Path("runs") / f"demo-{i}").exists())
    runs = {}
    with Progress(transient=True) as progress:
        for rule in ("fedavg", "celm"):
            task = progress.add_task(f"{rule:8}", total=None)
            runs[rule] = celm.run(
                celm.Experiment(dataset="digits", split="pls", rule=rule),
                out=place / rule,
                watch=lambda done, total, _, task=task: progress.update(task, completed=done, total=total),
            )
    show(runs["celm"])
    contributed, averaged = runs["celm"].accuracy, runs["fedavg"].accuracy
    print(
        f"plain averaging of the same clients: accuracy {100 * averaged:.2f} % (CELM {100 * contributed:.2f} %)"
    )

    print(f"report to look at: {write_report(runs['celm'].folder)}")


if __name__ == "__main__":
    main()
