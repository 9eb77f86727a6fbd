"""The user's own images and the user's own model, from end to end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import Result

import celm as package

MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width, pixels, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.BatchNorm1d(width), nn.ReLU())
        self.classifier = nn.Linear(width, classes)

    def forward(self, x):
        return self.classifier(self.body(x))

def make(input_shape, classes, width=6):
    channels, height, rows = input_shape
    return Net(width, channels * height * rows, classes)

def local(input_shape, classes):
    class Hidden(Net):
        pass
    return Hidden(4, input_shape[0] * input_shape[1] * input_shape[2], classes)
"""


def images(seed: int, level: int, count: int) -> list[Image.Image]:
    draw = np.random.default_rng(seed)
    pixels = draw.integers(level, level + 60, (count, 6, 6, 3), dtype=np.uint8)
    return [Image.fromarray(each) for each in pixels]


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    for index, name in enumerate(("cat", "dog", "eel é")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number, image in enumerate(images(index, 60 * index, 30)):
            image.save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


@pytest.fixture
def parquet_folder(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = []
    for label in range(3):
        for number, image in enumerate(images(label, 60 * label, 30)):
            content = io.BytesIO()
            image.save(content, "PNG")
            owner = ("Clinic A", "Clinic B", "Ärzte [bold]C[/bold]")[number % 3]
            rows.append(
                {"image": {"bytes": content.getvalue(), "path": None}, "label": label, "client": owner}
            )
    (tmp_path / "tables").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tables" / "train.parquet")
    return tmp_path / "tables"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELM_CACHE", str(tmp_path / "decoded"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


SMALL = ("--rounds=2", "--clients=3", "--set=probe.steps=3", "--set=train.batch=8", "--format=json")


def test_images_by_class_folder(class_folders: Path, invoke: Callable[..., Result]) -> None:
    result = invoke("run", "--dataset", class_folders, "--split=iid", *SMALL)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["dataset"] == "folder"
    assert document["classes"] == ["cat", "dog", "eel é"]
    assert sum(map(sum, document["counts"].values())) == 72


def test_parquet_with_owners_names_its_own_clients(
    tmp_path: Path, parquet_folder: Path, invoke: Callable[..., Result]
) -> None:
    result = invoke("run", "--dataset", parquet_folder, "--split=natural", "--out=run", *SMALL)
    assert result.exit_code == 0, result.output
    names = ["Clinic A", "Clinic B", "Ärzte [bold]C[/bold]"]
    assert list(json.loads(result.stdout)["weights"]) == names
    printed = invoke("run", "--resume", "run")
    assert all(name in printed.stdout for name in names)


def write_model(folder: Path) -> None:
    (folder / "my_models.py").write_text(MODEL)


def test_own_model_by_its_factory_and_settings(tmp_path: Path, celm: Callable[..., Any]) -> None:
    write_model(tmp_path)
    done = celm("run", "--model=my_models:make", "--set=model.width=5", "--out=run", *SMALL)
    assert done.returncode == 0, done.stderr
    settings = package.Experiment.read(tmp_path / "run" / "settings.toml")
    assert settings.model.name == "my_models:make"
    assert settings.model.options == {"width": 5}


@pytest.mark.parametrize("path", ["./nets/own.py", "nets/own.py", "{folder}/nets/own.py"])
def test_own_model_by_the_file_of_its_factory(
    tmp_path: Path, invoke: Callable[..., Result], refused: Callable[..., str], path: str
) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "widths.py").write_text("WIDTH = 7\n")
    (tmp_path / "nets" / "own.py").write_text(f"from widths import WIDTH\n{MODEL}")
    name = f"{path.format(folder=tmp_path)}:make"
    experiment = package.Experiment(
        model={"name": name, "width": 5}, clients=3, rounds=2, probe={"steps": 3}, train={"batch": 8}
    )
    run = package.run(experiment, tmp_path / "python")
    assert run.model().body[1].out_features == 5
    by_command = invoke("run", "--model", name, "--set=model.width=5", "--out=shell", *SMALL)
    assert by_command.exit_code == 0, by_command.output
    assert json.loads(by_command.stdout)["weights"] == run.weights
    assert "has no 'mke'" in refused("run", "--model", name.replace(":make", ":mke"), *SMALL)
    assert "there is no file" in refused("run", "--model", "./nets/nothing.py:make", *SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["class_folders", "parquet_folder"])
def test_own_data_and_model_with_workers_give_the_same_bytes_as_without(
    tmp_path: Path,
    celm: Callable[..., Any],
    outcome: Callable[[Path], dict[str, Any]],
    request: pytest.FixtureRequest,
    data: str,
) -> None:
    write_model(tmp_path)
    folder = request.getfixturevalue(data)
    for workers in (0, 2):
        arguments = ("--dataset", folder, "--split=iid", "--model=my_models:make", f"--workers={workers}")
        done = celm("run", *arguments, f"--out=run-{workers}", *SMALL)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert outcome(tmp_path / "run-0") == outcome(tmp_path / "run-2")


@pytest.mark.slow
def test_the_workers_of_the_console_script_import_the_user_s_model_too(tmp_path: Path) -> None:
    """Unlike `python -m celm`, the script does not have the working folder on its path."""
    (tmp_path / "there").mkdir()
    write_model(tmp_path / "there")
    script = tmp_path / "script.py"
    script.write_text("from celm.cli import main\nif __name__ == '__main__':\n    main()\n")
    done = subprocess.run(
        [sys.executable, script, "run", "--model=my_models:make", "--workers=2", *SMALL],
        cwd=tmp_path / "there",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_a_model_that_prints_does_not_touch_the_json(tmp_path: Path, celm: Callable[..., Any]) -> None:
    (tmp_path / "nets.py").write_text(
        f"print('at import')\n{MODEL}\n"
        "def chatty(input_shape, classes):\n    print('at call')\n    return make(input_shape[:3], classes)\n"
    )
    done = celm("run", "--model=./nets.py:chatty", "--rounds=1", "--set=run.workers=0", "--format=json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["model"] == "./nets.py:chatty"
    assert "at import" in done.stderr
    assert "at call" in done.stderr
