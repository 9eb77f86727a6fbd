"""Code that a file names as `package.module:factory` runs only if the caller confirms it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

import celm
from celm.base.errors import CelmError
from celm.base.files import read_tensors, write_tensors
from celm.runs.run import Run
from celm.runs.run_folder import RunFolder
from celm.study.resource_metrics import upload_megabytes

HOSTILE = {"name": "os:system", "command": "touch executed"}
OWN = "own_nets:make"
FACTORY = """
from torch import nn

def make(input_shape, classes, width=4):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, classes))
"""
SMALL: dict[str, Any] = {
    "split": {"name": "pls", "clients": 3},
    "probe": {"steps": 2},
    "run": {"rounds": 2, "workers": 0},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_nets.py").write_text(FACTORY)
    return tmp_path


@pytest.fixture
def own(here: Path) -> Run:
    return celm.run(celm.Experiment.parse({**SMALL, "model": {"name": OWN}}), out=here / "run")


def reach(folder: Path, number: int) -> None:
    """As if the run had been stopped after round `number`."""
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    for file in RunFolder(folder).checkpoint_files():
        if file.stem != f"round-{number:06d}":
            file.unlink()


def remove_checksums(folder: Path) -> None:
    """As whoever rewrites a file would do."""
    result = json.loads((folder / "result.json").read_text())
    del result["files"], result["sha256"]
    (folder / "result.json").write_text(json.dumps(result))


def forge(folder: Path) -> None:
    """The folder as somebody who wants code run would send it."""
    remove_checksums(folder)
    tensors, about = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", tensors, about | {"model": HOSTILE})


def test_the_model_of_a_run_that_names_code_is_not_built(own: Run, here: Path, refused: Any) -> None:
    forge(here / "run")
    read = celm.resume(here / "run")
    for run in (own, read):
        with pytest.raises(CelmError, match="os:system"):
            run.model()
    line = refused("export", "run", "--out=model.pt2")
    assert "--model os:system" in line
    assert not (here / "model.pt2").exists()
    with pytest.raises(CelmError, match="is of model 'os:system', not of 'own_nets:make'"):
        upload_megabytes(read)
    assert not (here / "executed").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_of_ones_own_is_named_by_whoever_ran_it_or_again(
    own: Run, here: Path, invoke: Callable[..., Result]
) -> None:
    ours = own.model().state_dict()
    read = celm.resume(here / "run")
    with pytest.raises(CelmError, match=f"in Python model='{OWN}'"):
        read.model()
    for model in (read.model(OWN), celm.resume(here / "run", model=OWN).model()):
        assert all(torch.equal(ours[name], tensor) for name, tensor in model.state_dict().items())
    assert invoke("export", "run", "--out=model.safetensors").exit_code == 0
    assert invoke("export", "run", "--out=model.pt2", "--model", OWN).exit_code == 0


def test_a_run_that_names_code_is_only_resumed_by_who_names_it(
    own: Run, here: Path, invoke: Callable[..., Result], refused: Any
) -> None:
    before = own.model().state_dict()
    reach(here / "run", 1)
    with pytest.raises(CelmError, match=OWN):
        celm.resume(here / "run")
    assert f"--model {OWN}" in refused("run", "--resume", "run")
    assert "is of model" in refused("run", "--resume", "run", "--model", "mlp")
    assert "--resume" in refused("run", "--resume", "run", "--rounds", "9")
    done = invoke("run", "--resume", "run", "--model", OWN)
    assert done.exit_code == 0, done.output
    after = celm.resume(here / "run").model(OWN).state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_a_settings_file_in_a_folder_has_no_code_run(here: Path, refused: Any) -> None:
    celm.run(celm.Experiment.parse(SMALL), out=here / "run")
    reach(here / "run", 1)
    settings = here / "run" / "settings.toml"
    lines = settings.read_text().replace('name = "mlp"', 'name = "os:system"\ncommand = "touch executed"')
    assert "os:system" in lines
    settings.write_text(lines)
    assert "--model os:system" in refused("run", "--resume", "run")
    assert not (here / "executed").exists()


def test_built_in_models_need_no_name(here: Path, invoke: Callable[..., Result]) -> None:
    celm.run(celm.Experiment.parse(SMALL), out=here / "run")
    assert celm.resume(here / "run").model() is not None
    reach(here / "run", 1)
    assert invoke("run", "--resume", "run").exit_code == 0


def test_a_model_file_that_does_not_say_what_it_is(own: Run, here: Path) -> None:
    remove_checksums(here / "run")
    write_tensors(here / "run" / "model.safetensors", {"w": torch.zeros(1)}, {"model": 3})
    with pytest.raises(CelmError, match="no model specification"):
        own.model(OWN)
