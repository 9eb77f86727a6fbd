"""`celm run`: one federation from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.output import Format, console, notes, print_json, printable, warn
from celm.federation.folder import Folder
from celm.federation.place import default_place

if TYPE_CHECKING:
    from celm.engines.ray_probe import RayProber
    from celm.federation.run import Run


class Engine(StrEnum):
    local = "local"
    flower = "flower"


def command(
    file: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="Settings; see `celm init`.")
    ] = None,
    dataset: options.Dataset = None,
    split: options.Split = None,
    model: options.Model = None,
    rule: options.Rule = None,
    objective: options.Objective = None,
    clients: options.Clients = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    participation: options.Participation = None,
    observe: options.Observe = None,
    evidence: options.Evidence = None,
    reprobe: options.Reprobe = None,
    preset: options.Preset = None,
    engine: Annotated[
        Engine,
        typer.Option(help="Who runs the clients: this machine, or Flower's simulation. Changes no result."),
    ] = Engine.local,
    workers: options.Workers = None,
    probe_engine: options.ProbeEngine = options.ProbeEngineName.local,
    address: options.Address = None,
    device: options.Device = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a new one in runs/.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    settings: options.Settings = None,
    log: options.Logs = None,
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """Run a federation and say who contributed what.

    [bold]Examples[/bold]

      celm run                                             the embedded digits, pure label skew, CELM

      celm run --dataset fashion_mnist --split maverick --rule celm --seed 43

      celm run --split dirichlet --set split.alpha=0.05 --rounds 20 --format json

      celm run --rule fedavg --observe celm,shapfed        estimators side by side on one trajectory

      celm run my.toml --rule fedavg --out runs/baseline

      celm run --engine flower                             the same clients on nodes of Flower's simulation

      celm run --probe-engine ray --address auto           the probes on a Ray cluster

      celm run --resume runs/baseline

      celm run --resume runs/own --model my_package.nets:make

      celm run --log tensorboard:logs                      and watch it by: tensorboard --logdir logs
    """
    targets = options.log_targets(log)
    given = {
        "dataset": dataset,
        "split": split,
        "model": model,
        "rule": rule,
        "objective": objective,
        "clients": clients,
        "rounds": rounds,
        "seed": seed,
        "participation": participation,
        "observe": observe,
        "evidence": evidence,
        "reprobe": reprobe,
        "device": device,
    }
    if engine is Engine.flower and find_spec("flwr") is None:
        raise CelmError("--engine flower needs Flower", "pip install 'celm[flower]'")
    if engine is Engine.flower and address is not None:
        raise CelmError("--address: Flower's simulation starts a Ray of its own, which also probes")
    prober = options.ray_prober(probe_engine, address)
    if resume is not None:
        others = [value for name, value in given.items() if name != "model"]
        if file or out or settings or preset or any(value is not None for value in others):
            raise CelmError(
                "--resume takes its settings from the run folder",
                "only --engine, --workers, --probe-engine, --address, --log and --format go with it,"
                " and --model to confirm one of your own",
            )
        folder = Folder.open(resume)
        folder.check_model(model)
    else:
        experiment = options.experiment_from(file, {**given, "workers": workers}, settings, preset)
        folder = Folder.create(out or default_place(experiment), experiment, claimed=out is None)
    from celm.report.loggers import Log

    log_to = targets if folder.result() is None else []
    after = len(folder.records()) if log_to else 0
    played = False

    def note(done: int, total: int, record: dict[str, Any]) -> None:
        nonlocal played
        played = True
        watch(done, total, record)
        logged.round(record)

    with (
        progress_bar(folder, quiet=format is Format.json) as watch,
        closing(Log(log_to, folder.path, warn, after)) as logged,
    ):
        try:
            # The folder is there with its settings; only now comes what takes time.
            # Flower's simulation starts a Ray of its own, which the prober then finds.
            with on_cluster(prober if engine is Engine.local else None, folder):
                finished = engine_of(engine)(folder, note, workers, prober=prober)
            if played:
                logged.end(finished)
        except KeyboardInterrupt:
            notes.print(f"\nstopped; go on with: celm run --resume {escape(again(folder))}", soft_wrap=True)
            raise
        except CelmError as error:
            if played:
                raise CelmError(str(error), f"go on with: celm run --resume {again(folder)}") from error
            raise
    if format is Format.json:
        print_json(finished.metrics)
    else:
        show(finished)


def again(folder: Folder) -> str:
    """What `--resume` takes; a model of the user's own is to be named each time."""
    name = folder.settings().model.name
    return f"{folder.path} --model {name}" if ":" in name else str(folder.path)


def engine_of(engine: Engine) -> Callable[..., Run]:
    """What carries out a run; imported now, as it takes time."""
    if engine is Engine.flower:
        from celm.flower.engine import carry_out as in_flower

        return in_flower
    from celm.engines.launch import carry_out

    return carry_out


@contextmanager
def on_cluster(prober: RayProber | None, folder: Folder) -> Iterator[None]:
    """In the cluster, where one is asked for; if it cannot be joined, nothing is left behind."""
    if prober is not None:
        try:
            prober.join()
        except CelmError:
            if folder.fresh:
                folder.discard()
            raise
    with prober or nullcontext():
        yield


class progress_bar:  # noqa: N801 - used as a context manager, as a verb
    """Rounds done, accuracy, time left; on stderr, and only where somebody watches."""

    def __init__(self, folder: Folder, quiet: bool) -> None:
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=notes,
            transient=True,
            disable=quiet or not notes.is_terminal,
        )
        self.task = self.progress.add_task("preparing", total=None, accuracy="")
        self.folder = folder

    def __enter__(self) -> Any:
        self.progress.start()
        return self.watch

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def watch(self, done: int, total: int, record: dict[str, Any]) -> None:
        accuracy = record.get("accuracy")
        shown = f"accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
        self.progress.update(self.task, completed=done, total=total, description="round", accuracy=shown)


def show(run: Run) -> None:
    """The answer on one screen."""
    from celm.cli.tables import contribution_table

    metrics = run.metrics
    out = console()
    title = f"{metrics['dataset']}, {metrics['split']}, {run.experiment.method}, seed {metrics['seed']}"
    out.print(contribution_table(run, title))
    line = f"accuracy {100 * metrics['accuracy']:.2f} %, balanced {100 * metrics['balanced_accuracy']:.2f} %"
    if metrics["rare_class_accuracy"] is not None:
        line += f", rare classes {100 * metrics['rare_class_accuracy']:.2f} %"
    rounds = "1 round" if metrics["rounds"] == 1 else f"{metrics['rounds']} rounds"
    out.print(f"{line} after {rounds} in {metrics['seconds']:.1f} s")
    if said := run.experiment.run.conditions():
        out.print(f"{said}, for this rule and all that watch", style="dim", soft_wrap=True)
    for client, reason in metrics["excluded"].items():
        out.print(Text(f"excluded: {printable(client)}: {printable(reason)}", style="yellow"), soft_wrap=True)
    if metrics["unreadable"]:
        names = ", ".join(map(printable, metrics["unreadable"]))
        out.print(
            Text(f"no evidence could be read from: {names} (logits not finite)", style="yellow"),
            soft_wrap=True,
        )
    out.print(f"run folder: {escape(str(run.folder))}", soft_wrap=True)
    out.print(f"for a report: celm report {escape(str(run.folder))}", style="dim", soft_wrap=True)
