"""What docs/extending.md shows works as it stands, through the public entry points and its own commands."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
SUMMARIES = {
    "rules": ("loudest", "Weighs clients by how far they moved.", ["power"]),
    "objectives": ("smoothed", "Cross-entropy with smoothed labels.", ["epsilon"]),
    "splits": ("power_law", "Power law: alike in classes, ever smaller from client to client.", ["exponent"]),
    "datasets": (
        "bars",
        "Bright bars in noise, 8x8, 8 classes, 1,000 images; needs no files.",
        ["noise"],
    ),
    "attacks": (
        "opposite",
        "Trains, and sends the opposite of what it learnt.",
        ["client", "strength", "first_round", "last_round"],
    ),
}


def titled(kind: str) -> dict[str, str]:
    return dict(re.findall(rf'```{kind} title="([^"]+)"\n(.*?)```', TEXT, re.DOTALL))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The examples, laid out as pip would install them."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").write_text("")
    for path, code in titled("python").items():
        assert len(code.splitlines()) <= 42, path
        (folder / path).write_text(code, encoding="utf-8")
    told = tomllib.loads(titled("toml")["pyproject.toml"])
    project = told["project"]
    assert told["tool"]["setuptools"]["packages"] == [project["name"]]
    points = configparser.ConfigParser()
    points.read_dict(project["entry-points"])
    about = folder / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    with (about / "entry_points.txt").open("w") as file:
        points.write(file)
    return folder


def python(site: Path, folder: Path, *arguments: str) -> dict:
    """What a process says as JSON that finds the examples installed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_examples_are_listed_with_their_settings(site, tmp_path):
    listing = (
        "import json; from celm.cli.list import REGISTRIES as all;"
        "print(json.dumps({k: {n: [c.summary(n), c.settings(n)] for n in c.plugins} for k, c in all.items()}))"
    )
    listed = python(site, tmp_path, "-c", listing)
    for kind, (name, summary, settings) in SUMMARIES.items():
        assert listed[kind][name][0] == summary
        assert [setting["name"] for setting in listed[kind][name][1]] == settings
        assert all(setting["about"] for setting in listed[kind][name][1])


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_page_runs(command, site, tmp_path):
    _, verb, *options = shlex.split(command)
    rounds = ["--rounds", "2"] if verb == "run" else []
    found = python(site, tmp_path, "-m", "celm", verb, *options, *rounds, "--format", "json")
    if verb == "run":
        assert abs(sum(found["weights"].values()) - 1) < 1e-9
    else:  # the power law with exponent 2: sizes in proportion to 1, 1/4, 1/9, ...
        sizes = [sum(row) for row in found["counts"].values()]
        whole = sum(1 / i**2 for i in range(1, 6))
        assert sizes == pytest.approx([sum(sizes) / i**2 / whole for i in range(1, 6)], abs=1)


def test_every_example_has_a_command():
    assert len(COMMANDS) >= 6
    for name, _, _ in SUMMARIES.values():
        assert any(name in command for command in COMMANDS), name
