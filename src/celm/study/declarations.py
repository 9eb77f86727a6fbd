"""The TOML files of studies: the built-in ones in `studies/`, and those of users."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from celm.base.errors import CelmError, suggest_name
from celm.base.files import read_text


def study_names() -> list[str]:
    """Return the names of the built-in studies."""
    declarations = files("celm.study").joinpath("studies").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in declarations)


def read_declaration(name: str) -> str:
    """Return the text of a built-in study, by its name, or of a user's TOML file."""
    if name.endswith(".toml"):
        return read_text(Path(name))
    if name in study_names():
        return files("celm.study").joinpath("studies", f"{name}.toml").read_text(encoding="utf-8")
    raise CelmError(f"unknown study '{name}'", suggest_name(name, study_names()))
