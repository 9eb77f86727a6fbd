"""`celm split`: the number of samples of each client and class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celm.cli import options
from celm.cli.output import Format, print_json, printable, stdout_console
from celm.cli.tables import class_counts_table


def split_command(
    dataset: options.DatasetOption = None,
    split: options.SplitOption = None,
    clients: options.ClientsOption = None,
    seed: options.SeedOption = None,
    settings: options.SettingsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File of the figure (.png, .svg, .pdf); by default named after the split."),
    ] = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Show how a split divides a dataset among clients: a table, and a bubble plot with both marginals.

    [bold]Examples[/bold]

      celm split --dataset fashion_mnist --split pls --seed 43 --out pls.svg
      celm split --split dirichlet --set split.alpha=0.05 --format json
    """
    option_values = {"dataset": dataset, "split": split, "clients": clients, "seed": seed}
    given_experiment = options.experiment_from(None, option_values, settings)
    from celm.federation.build import load_dataset, partition_dataset, resolve_defaults

    resolved = resolve_defaults(given_experiment)
    experiment = resolved.experiment
    data = load_dataset(resolved)
    partition = partition_dataset(resolved, data)
    counts = partition.counts(data.train_labels.numpy(), len(data.classes))
    title = f"{experiment.dataset.name}, {experiment.split.name}, seed {experiment.split.seed}"
    if out is None and format is Format.text:
        out = Path(f"{experiment.dataset.name}-{experiment.split.name}-seed{experiment.split.seed}.png")
    if out is not None:
        from celm.report import save_figure, split_figure

        save_figure(split_figure(counts, data.classes, title), out)
    if format is Format.json:
        print_json(
            {
                "dataset": experiment.dataset.name,
                "split": experiment.split.name,
                "seed": experiment.split.seed,
                "classes": list(data.classes),
                "counts": counts,
                "rare_classes": list(partition.rare_classes),
                "free_riders": list(partition.free_riders),
            }
        )
        return
    terminal = stdout_console()
    terminal.print(class_counts_table(counts, data.classes, title, terminal.width))
    terminal.print(f"figure: {escape(str(out))}", soft_wrap=True)
    if partition.rare_classes:
        terminal.print(
            "rare classes: " + ", ".join(escape(printable(data.classes[k])) for k in partition.rare_classes)
        )
    if partition.free_riders:
        terminal.print("free-riders: " + ", ".join(escape(printable(name)) for name in partition.free_riders))
