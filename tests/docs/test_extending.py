"""What CONTRIBUTING.md shows works as it stands, through the public entry points."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def installed_package(folder: Path) -> Path:
    """The example, laid out as pip would install it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Loudest" in block
    )
    assert len(code.splitlines()) < 40
    points = re.search(r"```toml\n\[project\.entry-points\.\"(celm\.rules)\"\]\n(.*?)```", text, re.DOTALL)
    package, about = folder / "my_package", folder / "my_package-1.0.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text("")
    (package / "loudest.py").write_text(code, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2].replace(chr(34), '')}")
    return folder


def test_rule_of_an_installed_package_runs_by_its_name(tmp_path):
    site = installed_package(tmp_path)

    def celm(*arguments: str) -> dict:
        done = subprocess.run(
            [sys.executable, "-m", "celm", *arguments, "--format", "json"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = {row["name"]: row for row in celm("list", "rules")["rules"]}
    assert listed["loudest"]["summary"] == "Weighs clients by how far they moved."
    assert listed["loudest"]["settings"][0]["about"] == "Exponent of the length."
    found = celm("run", "--rule", "loudest", "--set", "rule.power=2", "--rounds", "2")
    assert found["rule"] == "loudest"
    assert abs(sum(found["weights"].values()) - 1) < 1e-9
    assert len(set(found["weights"].values())) > 1
