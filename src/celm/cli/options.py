"""Options that several commands share. An option overrides the experiment file; `--set` overrides both."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celm.base.errors import CelmError
from celm.cli.output import Format
from celm.experiment.config import Experiment, read_toml
from celm.experiment.dataset_names import parse_dataset
from celm.experiment.keywords import KEYWORDS
from celm.experiment.overrides import apply_override, set_value
from celm.experiment.presets import with_preset

if TYPE_CHECKING:
    from celm.engines.ray_prober import RayProber
    from celm.tracking import LogTarget


class ProbeEngineName(StrEnum):
    local = "local"
    ray = "ray"


DatasetOption = Annotated[
    str | None, typer.Option(help="Dataset name, your own folder or table, or hf:OWNER/NAME.")
]
SplitOption = Annotated[str | None, typer.Option(help="How to divide the dataset among clients.")]
ModelOption = Annotated[
    str | None, typer.Option(help="Model name, pkg.module:factory for your own, or hf:NAME for texts.")
]
RuleOption = Annotated[
    str | None, typer.Option(help="Server side: how client updates become the global model.")
]
ObjectiveOption = Annotated[str | None, typer.Option(help="Client side: what each client minimises.")]
ClientsOption = Annotated[int | None, typer.Option(help="Number of clients.")]
RoundsOption = Annotated[int | None, typer.Option(help="Number of rounds.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of all randomness.")]
ParticipationOption = Annotated[
    float | None, typer.Option(help="Fraction of the clients selected in each round.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(help="Worker processes; 0 trains in the main process. Does not change results."),
]
ParallelRunsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of runs at a time; by default one per core.")
]
DeviceOption = Annotated[str | None, typer.Option(help="Device: cpu, cuda or mps.")]
ObserveOption = Annotated[
    str | None,
    typer.Option(help="Rules that compute weights beside --rule without aggregating, separated by commas."),
]
EvidenceOption = Annotated[
    str | None,
    typer.Option(
        help="paper; calibrated: scaling a model cannot increase it; head: from changes of the last layer."
    ),
]
IdleCheckOption = Annotated[
    str | None,
    typer.Option(
        help="When to re-check, after the warm-up, which clients still train: never, every:N or on-drift."
    ),
]
PresetOption = Annotated[
    str | None, typer.Option(help="Named settings: paper, or trust if members may cheat.")
]
ProbeEngineOption = Annotated[
    ProbeEngineName,
    typer.Option(
        help="Where to probe models: in this process, or on a Ray cluster. Changes results by rounding only."
    ),
]
AddressOption = Annotated[
    str | None, typer.Option(help="Address of the Ray cluster; by default Ray finds or starts one.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in split.alpha=0.05; repeatable."),
]
LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="KIND:DIR",
        help="Also log to a dashboard: tensorboard:DIR, mlflow:DIR or wandb:DIR; repeatable.",
    ),
]
FormatOption = Annotated[Format, typer.Option(help="text for people, json for programs.")]

_OPTION_KEYS = {
    "split": ("split", "name"),
    "model": ("model", "name"),
    "rule": ("rule", "name"),
    "objective": ("objective", "name"),
    **KEYWORDS,
}
"""Option -> table and key of its setting."""


def experiment_from(
    file: Path | None, option_values: dict[str, Any], settings: list[str] | None, preset: str | None = None
) -> Experiment:
    """Build an experiment from a file, if given, then options, then `--set`; a preset fills in what is not set."""
    tables: dict[str, Any] = read_toml(file) if file else {}
    for option, value in option_values.items():
        if value is None:
            continue
        if option == "dataset":
            _set_dataset(tables, value)
        elif option == "observe":
            tables["observe"] = [{"name": name.strip()} for name in value.split(",") if name.strip()]
        else:
            set_value(tables, *_OPTION_KEYS[option], value)
    for assignment in settings or []:
        apply_override(tables, assignment)
    return Experiment.parse(with_preset(tables, preset))


def _set_dataset(tables: dict[str, Any], value: str) -> None:
    """Set the dataset to a registered name, one of the hub, or the user's folder or file."""
    for key, setting in parse_dataset(value, "--dataset").items():
        set_value(tables, "dataset", key, setting)


def log_targets(logs: list[str] | None) -> list[LogTarget]:
    """Parse and check `--log`, before any work is done."""
    if not logs:
        return []
    from celm.tracking import parse_target

    return [parse_target(text) for text in logs]


def ray_prober(engine: ProbeEngineName, address: str | None) -> RayProber | None:
    """Return a prober for a Ray cluster, not connected yet, or None for the local probe."""
    if engine is ProbeEngineName.ray:
        from celm.engines.ray_prober import RayProber

        return RayProber(address)
    if address is not None:
        raise CelmError("--address needs --probe-engine ray")
    return None
