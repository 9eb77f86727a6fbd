"""What `pyproject.toml` says about the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", ["docs", "results", "examples", "benchmarks", "mkdocs.yml"])
def test_the_source_archive_has_what_the_tests_read(folder: str) -> None:
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert f"/{folder}" in included
    assert "/tests" in included


def test_the_classifiers_name_every_python_that_is_tested() -> None:
    workflow = REPOSITORY / ".github/workflows/tests.yml"
    if not workflow.exists():
        pytest.skip("the source archive has no workflows")
    tested = re.search(r"python: \[(.*)\]", workflow.read_text(encoding="utf-8"))
    assert tested is not None
    named = {
        line.rpartition(" :: ")[2] for line in PYPROJECT["project"]["classifiers"] if ":: Python ::" in line
    }
    assert named == set(re.findall(r"[\d.]+", tested[1]))
