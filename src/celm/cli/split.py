"""`celm split`: who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celm.cli import options
from celm.cli.output import Format, console, print_json, printable
from celm.cli.tables import holdings_table


def command(
    dataset: options.Dataset = None,
    split: options.Split = None,
    clients: options.Clients = None,
    seed: options.Seed = None,
    settings: options.Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="The picture (.png, .svg, .pdf); named after the split by default.")
    ] = None,
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """Show how a split deals a dataset: a table, and a bubble plot with both marginals.

    [bold]Examples[/bold]

      celm split --dataset fashion_mnist --split pls --seed 43 --out pls.svg

      celm split --split dirichlet --set split.alpha=0.05 --format json
    """
    given = {"dataset": dataset, "split": split, "clients": clients, "seed": seed}
    experiment = options.experiment_from(None, given, settings)
    from celm.federation.assembly import deal, load, resolve

    experiment = resolve(experiment)
    data = load(experiment)
    dealing = deal(experiment, data)
    counts = dealing.counts(data.train_labels.numpy(), len(data.classes))
    title = f"{experiment.dataset.name}, {experiment.split.name}, seed {experiment.split.seed}"
    if out is None and format is Format.text:
        out = Path(f"{experiment.dataset.name}-{experiment.split.name}-seed{experiment.split.seed}.png")
    if out is not None:
        from celm.report.split_figure import save_figure, split_figure

        save_figure(split_figure(counts, data.classes, title), out)
    if format is Format.json:
        print_json(
            {
                "dataset": experiment.dataset.name,
                "split": experiment.split.name,
                "seed": experiment.split.seed,
                "classes": list(data.classes),
                "counts": counts,
                "rare_classes": list(dealing.rare_classes),
                "free_riders": list(dealing.free_riders),
            }
        )
        return
    told = console()
    told.print(holdings_table(counts, data.classes, title, told.width))
    told.print(f"picture: {escape(str(out))}", soft_wrap=True)
    if dealing.rare_classes:
        told.print(
            "rare classes: " + ", ".join(escape(printable(data.classes[k])) for k in dealing.rare_classes)
        )
    if dealing.free_riders:
        told.print("free-riders: " + ", ".join(escape(printable(name)) for name in dealing.free_riders))
