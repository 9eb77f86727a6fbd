"""Nothing heavy is imported before it is needed, and no folder exists before the settings are resolved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "sklearn", "scipy", "matplotlib", "pyarrow", "safetensors", "PIL")

IMPORTS = """
import sys
sys.argv = ["celm", *sys.argv[1:]]
import celm
if sys.argv[1:]:
    from celm.cli import main
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
print("heavy:", [name for name in {heavy} if name in sys.modules])
"""

NO_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise SystemExit(77)

sys.meta_path.insert(0, Refuse())
sys.argv = ["celm", "run", "--out", "run", *sys.argv[1:]]
from celm.cli import main
main()
"""


def run_script(text: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("run", "--help"), ("--version",), ("list",)])
def test_help_and_the_like_import_nothing_heavy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run_script(IMPORTS.format(heavy=HEAVY), tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize(
    "kind", ["rules", "objectives", "splits", "datasets", "models", "attacks", "studies"]
)
def test_lists_do_not_import_torch(tmp_path: Path, kind: str) -> None:
    done = run_script(IMPORTS.format(heavy=("torch",)), tmp_path, "list", kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("wrong", ["--set=train.lr=fast", "--rule=fedagv", "--set=combine.name=median"])
def test_a_wrong_setting_is_refused_before_anything_heavy_is_imported(tmp_path: Path, wrong: str) -> None:
    done = run_script(NO_TORCH, tmp_path, wrong)
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "run").exists()


def test_there_is_no_folder_before_the_components_are_built(tmp_path: Path) -> None:
    done = run_script(NO_TORCH, tmp_path, "--rounds=3")
    assert done.returncode == 77, done.stderr
    assert not (tmp_path / "run").exists()
