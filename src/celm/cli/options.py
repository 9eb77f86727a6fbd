"""Options that name settings, shared by the commands; an option wins over the file, `--set` over both."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celm.base.errors import CelmError
from celm.data.catalogue import datasets
from celm.federation.experiment import Experiment, assign, put, read_toml
from celm.federation.presets import with_preset

if TYPE_CHECKING:
    from celm.engines.ray_probe import RayProber
    from celm.report.loggers import Target


class ProbeEngineName(StrEnum):
    local = "local"
    ray = "ray"


Dataset = Annotated[str | None, typer.Option(help="A dataset's name, or a folder with your own data.")]
Split = Annotated[str | None, typer.Option(help="How the data is dealt to clients.")]
Model = Annotated[str | None, typer.Option(help="A model's name, or pkg.module:factory for your own.")]
Rule = Annotated[str | None, typer.Option(help="Server side: how client models become the global model.")]
Objective = Annotated[str | None, typer.Option(help="Client side: what each client minimises.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Participation = Annotated[float | None, typer.Option(help="Fraction of clients in each round.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; 0 is this one. Changes no result.")]
Device = Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda, mps.")]
Observe = Annotated[str | None, typer.Option(help="Rules that only watch, separated by commas.")]
Evidence = Annotated[
    str | None, typer.Option(help="paper, or calibrated: evidence that scaling a model cannot raise.")
]
Reprobe = Annotated[
    str | None, typer.Option(help="Look again at who works after the warm-up: every:10, on-drift or never.")
]
Preset = Annotated[str | None, typer.Option(help="Named settings: paper.")]
ProbeEngine = Annotated[
    ProbeEngineName,
    typer.Option(
        help="Where models are probed: this process, or a Ray cluster. Changes results by rounding only."
    ),
]
Address = Annotated[
    str | None, typer.Option(help="The Ray cluster; by default the one Ray finds, or starts here.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in split.alpha=0.05.")
]

Logs = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="KIND:DIR", help="Also log to a dashboard: tensorboard:DIR, mlflow:DIR or wandb:DIR."
    ),
]

PLACES = {
    "split": ("split", "name"),
    "model": ("model", "name"),
    "rule": ("rule", "name"),
    "objective": ("objective", "name"),
    "clients": ("split", "clients"),
    "rounds": ("run", "rounds"),
    "seed": ("run", "seed"),
    "participation": ("run", "participation"),
    "evidence": ("rule", "evidence"),
    "reprobe": ("rule", "reprobe"),
    "workers": ("run", "workers"),
    "device": ("run", "device"),
}


def experiment_from(
    file: Path | None, given: dict[str, Any], settings: list[str] | None, preset: str | None = None
) -> Experiment:
    """The experiment of a file (or of nothing), changed by options and then by `--set`; a preset fills gaps."""
    tables: dict[str, Any] = read_toml(file) if file else {}
    for option, value in given.items():
        if value is None:
            continue
        if option == "dataset":
            choose_dataset(tables, value)
        elif option == "observe":
            tables["observe"] = [{"name": name.strip()} for name in value.split(",") if name.strip()]
        else:
            put(tables, *PLACES[option], value)
    for assignment in settings or []:
        assign(tables, assignment)
    return Experiment.parse(with_preset(tables, preset))


def choose_dataset(tables: dict[str, Any], value: str) -> None:
    """A name, or the user's own folder; a name wins over a folder that happens to be called so."""
    path = Path(value).expanduser()
    if value in datasets.names() or ("/" not in value and not path.is_dir()):
        put(tables, "dataset", "name", value)
    elif path.is_dir():
        put(tables, "dataset", "name", "folder")
        put(tables, "dataset", "path", str(path.resolve()))
    else:
        raise CelmError(f"--dataset: there is no folder {value}")


def log_targets(logs: list[str] | None) -> list[Target]:
    """Where to log, checked before any work is done."""
    if not logs:
        return []
    from celm.report.loggers import parse

    return [parse(text) for text in logs]


def ray_prober(engine: ProbeEngineName, address: str | None) -> RayProber | None:
    """What probes on a cluster, where one is asked for; not joined yet, but checked."""
    if engine is ProbeEngineName.ray:
        from celm.engines.ray_probe import RayProber

        return RayProber(address)
    if address is not None:
        raise CelmError("--address goes with --probe-engine ray")
    return None
