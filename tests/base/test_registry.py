"""Components by name, and their settings."""

from __future__ import annotations

import datetime
import inspect
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from pydantic import PositiveInt

from celm.attacks import attacks
from celm.base import registry
from celm.base.errors import CelmError
from celm.base.registry import Configurable, Registry
from celm.data.registry import datasets, splits
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules


@dataclass(frozen=True)
class Shape(Configurable):
    """A shape.

    More of it.
    """

    sides: PositiveInt = 4
    lengths: tuple[float, ...] = (1.0,)
    name: str = "square"
    filled: bool = False
    area: float | None = None
    cached: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.sides == 2:
            raise ValueError("two sides enclose nothing")


@dataclass(frozen=True)
class Point(Configurable):
    """A point."""


@dataclass(frozen=True)
class Named(Configurable):
    label: str = ""
    """What it is called."""
    size: int = 1
    """How large."""


@dataclass(frozen=True)
class Dot(Named):
    """A dot."""

    size: int = 2
    """In points."""


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Registry[Shape]:
    module = ModuleType("shapes_of_test")
    module.Shape = Shape  # type: ignore[attr-defined]
    module.Point = Point  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shapes_of_test", module)
    return Registry("shape", {"square": "shapes_of_test:Shape", "point": "shapes_of_test:Point"})


def test_settings_fill_the_fields(shapes: Registry[Shape]) -> None:
    assert shapes.build("square", {}) == Shape()
    built = shapes.build("square", {"sides": 3, "lengths": [1, 2.5], "filled": True, "area": 2})
    assert built == Shape(3, (1.0, 2.5), filled=True, area=2.0)
    assert shapes.summary("square") == "A shape."


def test_inherited_settings_keep_their_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("dots_of_test")
    module.Dot = Dot  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dots_of_test", module)
    dots: Registry[Dot] = Registry("dot", {"dot": "dots_of_test:Dot"})
    assert dots.settings("dot") == [
        {"name": "label", "default": '""', "about": "What it is called."},
        {"name": "size", "default": "2", "about": "In points."},
    ]


def test_names_are_listed_without_importing_what_they_name() -> None:
    assert Registry[Shape]("nothing", {"a": "no_such_module_of_test:A"}).names() == ["a"]


@pytest.mark.parametrize("components", [attacks, datasets, models, objectives, rules, splits])
def test_summaries_are_those_of_the_imported_classes(components: Registry[Any]) -> None:
    imported = {name: inspect.getdoc(components.load(name)) or "" for name in components.names()}
    assert {name: components.summary(name) for name in imported} == {
        name: docstring.splitlines()[0] for name, docstring in imported.items()
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sqare", {}, "unknown shape 'sqare' (did you mean 'square'?)"),
        ("zzz", {}, "unknown shape 'zzz' (one of: point, square)"),
        ("square", {"side": 3}, "unknown setting 'shape.side' of shape 'square' (did you mean 'sides'?)"),
        ("square", {"cached": 3}, "unknown setting 'shape.cached'"),
        ("point", {"x": 3}, "unknown setting 'shape.x' of shape 'point' (shape 'point' has no settings)"),
        ("square", {"sides": "3"}, "setting 'shape.sides': input should be a valid integer, not '3'"),
        ("square", {"sides": 3.5}, "setting 'shape.sides'"),
        ("square", {"sides": True}, "setting 'shape.sides'"),
        ("square", {"sides": 0}, "setting 'shape.sides': input should be greater than 0, not 0"),
        ("square", {"filled": 1}, "setting 'shape.filled'"),
        ("square", {"lengths": 1.0}, "setting 'shape.lengths'"),
        ("square", {"lengths": [1.0, "x"]}, "setting 'shape.lengths.1'"),
        ("square", {"name": 3}, "setting 'shape.name'"),
        ("square", {"sides": 2}, "shape 'square': two sides enclose nothing"),
        ("square", {"name": datetime.date(2024, 1, 1)}, "settings 'shape.*' of shape 'square'"),
        ("square", {"sides": "x" * 10_000}, "setting 'shape.sides'"),
    ],
)
def test_errors_name_the_setting(
    shapes: Registry[Shape], name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CelmError) as caught:
        shapes.build(name, options)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 300


def installed(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> list[str]:
    asked: list[str] = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint(name, value, group) for name, value in entries]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return asked


def test_installed_packages_add_names(shapes: Registry[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = installed(monkeypatch, ("star", "shapes_of_test:Shape"), ("disc", "shapes_of_test:Shape"))
    assert shapes.names() == ["square", "point", "disc", "star"]
    assert shapes.build("star", {"sides": 5}) == Shape(5)
    assert asked == ["celm.shapes"]


def test_an_installed_package_cannot_take_a_built_in_name(
    shapes: Registry[Shape], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, ("point", "shapes_of_test:Shape"))
    assert shapes.load("point") is Point  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("value", ["no_such_module_of_test:A", "shapes_of_test:Absent"])
def test_an_added_name_that_does_not_load_is_named(
    shapes: Registry[Shape], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    installed(monkeypatch, ("star", value))
    with pytest.raises(CelmError, match=f"shape 'star' cannot be loaded from '{value}'"):
        shapes.build("star", {})
