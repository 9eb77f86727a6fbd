"""`celm run`: one federation from start to end."""

from __future__ import annotations

from contextlib import ExitStack, closing
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
from celm.cli.output import Format, print_json, print_warning, printable, stderr_console, stdout_console
from celm.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from celm.engines.ray_prober import RayProber
    from celm.federation.build import ResolvedExperiment
    from celm.runs.run import Run
    from celm.runs.runner import RoundCallback
    from celm.tracking import LogTarget


class EngineName(StrEnum):
    local = "local"
    flower = "flower"


def run_command(
    file: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="Settings; see `celm init`.")
    ] = None,
    dataset: options.DatasetOption = None,
    split: options.SplitOption = None,
    model: options.ModelOption = None,
    rule: options.RuleOption = None,
    objective: options.ObjectiveOption = None,
    clients: options.ClientsOption = None,
    rounds: options.RoundsOption = None,
    seed: options.SeedOption = None,
    participation: options.ParticipationOption = None,
    observe: options.ObserveOption = None,
    evidence: options.EvidenceOption = None,
    idle_check: options.IdleCheckOption = None,
    preset: options.PresetOption = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="Where clients train: on this machine, or in Flower's simulation. Does not change results."
        ),
    ] = EngineName.local,
    workers: options.WorkersOption = None,
    probe_engine: options.ProbeEngineOption = options.ProbeEngineName.local,
    address: options.AddressOption = None,
    device: options.DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a new folder in runs/.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    settings: options.SettingsOption = None,
    log: options.LogOption = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Run a federation and report what each client contributed.

    [bold]Examples[/bold]

      celm run                                    # digits with a free-rider
      celm run --dataset fashion_mnist --split maverick --rule celm --seed 43
      celm run --split dirichlet --set split.alpha=0.05 --rounds 20 --format json
      celm run --rule fedavg --observe celm,shapfed    # rules side by side
      celm run my.toml --rule fedavg --out runs/baseline
      celm run --dataset reviews.csv --set dataset.text_column=review --model hf:distilbert-base-uncased
      celm run --engine flower                    # in Flower's simulation
      celm run --probe-engine ray --address auto  # probes on a Ray cluster
      celm run --resume runs/baseline
      celm run --resume runs/own --model my_package.nets:make
      celm run --log tensorboard:logs     # then: tensorboard --logdir logs
    """
    targets = options.log_targets(log)
    option_values = {
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
        "idle_check": idle_check,
        "device": device,
    }
    if engine is EngineName.flower and find_spec("flwr") is None:
        raise CelmError("--engine flower needs Flower", "pip install 'celm[flower]'")
    if engine is EngineName.flower and address is not None:
        raise CelmError("--address does not work with --engine flower", "the simulation starts its own Ray")
    prober = options.ray_prober(probe_engine, address)
    if resume is not None:
        other_values = [value for name, value in option_values.items() if name != "model"]
        if file or out or settings or preset or any(value is not None for value in other_values):
            raise CelmError(
                "--resume takes its settings from the run folder",
                "combine it only with --engine, --workers, --probe-engine, --address, --log and --format,"
                " and with --model to confirm your own model",
            )
        folder = RunFolder.open(resume)
        folder.check_model(model)
    else:
        experiment = options.experiment_from(file, {**option_values, "workers": workers}, settings, preset)

    with _RoundProgress(quiet=format is Format.json) as update_progress, ExitStack() as stack:
        resolved = None
        if resume is None:
            from celm.federation.build import resolve_defaults

            resolved = resolve_defaults(experiment)
        if prober is not None and engine is EngineName.local:  # Flower's simulation starts its own Ray later
            stack.enter_context(prober)
        if resolved is not None:
            # Only now: neither a wrong setting nor an unreachable cluster leaves a folder behind.
            from celm.runs.runner import create_run_folder

            folder = create_run_folder(experiment, resolved, out)
        finished = _execute(folder, resolved, engine, workers, prober, targets, update_progress)
    if format is Format.json:
        print_json(finished.metrics)
    else:
        print_run(finished)


def _execute(
    folder: RunFolder,
    resolved: ResolvedExperiment | None,
    engine: EngineName,
    workers: int | None,
    prober: RayProber | None,
    targets: list[LogTarget],
    update_progress: RoundCallback,
) -> Run:
    """Run the remaining rounds, with progress and logs; if the run is stopped, print how to resume it."""
    from celm.runs.runner import continue_run
    from celm.tracking import RunTracker

    active_targets = targets if folder.result() is None else []
    last_round = len(folder.records()) if active_targets else 0
    any_round_done = False

    def on_round(done: int, total: int, record: dict[str, Any]) -> None:
        nonlocal any_round_done
        any_round_done = True
        update_progress(done, total, record)
        tracker.log_round(record)

    with closing(RunTracker(active_targets, folder.path, print_warning, last_round)) as tracker:
        try:
            if engine is EngineName.flower:
                from celm.flower.simulation import run_in_simulation

                finished = run_in_simulation(folder, on_round, workers, prober, resolved)
            else:
                finished = continue_run(folder, on_round, workers, probe_fn=prober, resolved=resolved)
            if any_round_done:
                tracker.log_summary(finished)
        except KeyboardInterrupt:
            stderr_console.print(f"\nstopped; {escape(_resume_hint(folder))}", soft_wrap=True)
            raise
        except CelmError as error:
            if any_round_done:
                raise CelmError(str(error), _resume_hint(folder)) from error
            raise
    return finished


def _resume_hint(folder: RunFolder) -> str:
    """Return the command that resumes a run; the user must name their own model each time."""
    name = folder.settings().model.name
    confirmation = f" --model {name}" if ":" in name else ""
    return f"resume with: celm run --resume {folder.path}{confirmation}"


class _RoundProgress:
    """A progress bar on stderr, if that is a terminal: rounds done, accuracy, time left."""

    def __init__(self, quiet: bool) -> None:
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=stderr_console,
            transient=True,
            disable=quiet or not stderr_console.is_terminal,
        )
        self.task = self.progress.add_task("preparing", total=None, accuracy="")

    def __enter__(self) -> RoundCallback:
        self.progress.start()
        return self.update

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, done: int, total: int, record: dict[str, Any]) -> None:
        accuracy = record.get("accuracy")
        accuracy_text = f"accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
        self.progress.update(
            self.task, completed=done, total=total, description="round", accuracy=accuracy_text
        )


def print_run(run: Run) -> None:
    """Print contributions and accuracy on one screen."""
    from celm.cli.tables import run_contribution_table
    from celm.experiment.differences import run_title_parts
    from celm.records.class_evidence import claims_from_records

    metrics = run.metrics
    claims = claims_from_records(run.rounds)
    terminal = stdout_console()
    title = ", ".join([*run_title_parts(run.experiment), run.experiment.method, f"seed {metrics['seed']}"])
    terminal.print(run_contribution_table(run, claims, title))
    for k, client in ({} if claims is None else claims.sole_evidence).items():
        terminal.print(
            Text(f"sole evidence for class {printable(metrics['classes'][k])}: {printable(client)}"),
            soft_wrap=True,
        )
    line = f"accuracy {100 * metrics['accuracy']:.2f} %, balanced {100 * metrics['balanced_accuracy']:.2f} %"
    if metrics["rare_class_accuracy"] is not None:
        line += f", rare classes {100 * metrics['rare_class_accuracy']:.2f} %"
    rounds = "1 round" if metrics["rounds"] == 1 else f"{metrics['rounds']} rounds"
    terminal.print(f"{line} after {rounds} in {metrics['seconds']:.1f} s", soft_wrap=True)
    if conditions := run.experiment.run.describe_conditions():
        shared = " This applies to the rule and all observers." if metrics["observed"] else ""
        terminal.print(f"{conditions}{shared}", style="dim", soft_wrap=True)
    for client, reason in metrics["excluded"].items():
        terminal.print(
            Text(f"excluded: {printable(client)}: {printable(reason)}", style="yellow"), soft_wrap=True
        )
    if metrics["nonfinite"]:
        names = ", ".join(map(printable, metrics["nonfinite"]))
        terminal.print(
            Text(f"no evidence, because logits are not finite: {names}", style="yellow"), soft_wrap=True
        )
    terminal.print(f"run folder: {escape(str(run.folder))}", soft_wrap=True)
    terminal.print(f"for a report: celm report {escape(str(run.folder))}", style="dim", soft_wrap=True)
