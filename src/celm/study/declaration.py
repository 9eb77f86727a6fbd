"""A study as a declaration: rows, methods, metrics, seeds; one short TOML file each in `studies/`.

title = "..."               what the table shows
paper = "main"              which table of the paper it fills, if any
metrics = ["accuracy"]      columns are methods x metrics; a row may name its own
seeds = [42, 43, 44]
[methods]                   label = settings; the label is the method unless `method` says otherwise
[[rows]]                    settings of the row: dataset, split, ...
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from celm.base.errors import CelmError, nearest
from celm.base.files import explained
from celm.study.compare import parse_method
from celm.study.measures import checked


class Row(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    dataset: str | dict[str, Any]
    split: str | dict[str, Any]
    metrics: list[str] | None = None

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        tables = {"dataset": self.dataset, "split": self.split, **(self.model_extra or {})}
        return {
            name: {"name": value} if isinstance(value, str) else dict(value) for name, value in tables.items()
        }

    @property
    def split_label(self) -> str:
        """As in the paper's tables: `pls`, `dirichlet_0.05`."""
        split = self.settings["split"]
        return f"{split['name']}_{split['alpha']:g}" if "alpha" in split else str(split["name"])

    @property
    def label(self) -> str:
        return f"{self.settings['dataset']['name']} {self.split_label}"


class Study(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    about: str = ""
    paper: str | None = None
    metrics: list[str] = Field(default=["accuracy"], min_length=1)
    seeds: list[int] = [42, 43, 44]
    methods: dict[str, dict[str, Any]]
    rows: list[Row]

    @model_validator(mode="after")
    def names_are_known(self) -> Self:
        for metric in [*self.metrics, *(metric for row in self.rows for metric in row.metrics or [])]:
            checked(metric)
        for label, settings in self.methods.items():
            parse_method(settings.get("method", label))
        return self

    @property
    def runs(self) -> int:
        """At the paper's scale."""
        return len(self.rows) * len(self.methods) * len(self.seeds)


def study_names() -> list[str]:
    return sorted(
        file.name.removesuffix(".toml") for file in files("celm.study").joinpath("studies").iterdir()
    )


def load_study(name: str) -> Study:
    """A study of ours by its name, or of the user's own by the path of its file."""
    if name.endswith(".toml"):
        with explained(Path(name), "read"):
            text = Path(name).read_text(encoding="utf-8")
    elif name in study_names():
        text = files("celm.study").joinpath("studies", f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise CelmError(f"unknown study '{name}'", nearest(name, study_names()))
    try:
        return Study.model_validate({"name": Path(name).stem, **tomllib.loads(text)})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CelmError(f"study '{name}' is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the study"
        raise CelmError(f"study '{name}' is not well declared: {place}: {first['msg']}") from error
