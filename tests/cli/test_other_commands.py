"""`celm split`, `list`, `data`, `init`, `export` and what they say metadata themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import Result

import celm
from celm import Experiment, __version__
from celm.cli import main
from celm.cli.app import app, data_app, keys_app
from celm.cli.list import REGISTRIES, ListedKind
from celm.data.sources.digits import Digits
from celm.models import build_model

Invoke = Callable[..., Result]
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> celm.Run:
    experiment = Experiment(
        rule="fedavg",
        model={"name": "mlp", "widths": [8]},
        split={"name": "iid", "clients": 2},
        run={"rounds": 2},
    )
    return celm.run(experiment, tmp_path_factory.mktemp("cli") / "run")


def test_version_and_help(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"celm {__version__}\n"
    printed = invoke("--help").stdout
    for command in ("run", "split", "init", "list", "export", "data"):
        assert command in printed
    assert invoke().exit_code in (0, 2)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rum", "No such command 'rum'."),
        ("run --rounds many", "'many' is not a valid integer. (see celm run --help)"),
        ("run --bogus", "No such option"),
        ("audit --clients x", "Missing option '--model'."),
        ("data bogus", "No such command 'bogus'."),
    ],
)
def test_a_wrong_command_line_is_one_line(
    line: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["celm", *line.split()])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err


def test_commands_pass_on_what_they_end_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for line, code in (("--version", None), ("data", 2), ("run --resume nowhere", 2)):
        monkeypatch.setattr("sys.argv", ["celm", *line.split()])
        with pytest.raises(SystemExit) as end:
            main()
        assert (end.value.code or None) == code


COMMANDS = [
    *("run", "compare", "study", "audit", "audit-verify", "report", "split", "init", "list", "export"),
    *("check", "payout", "watch"),
    *("data list", "data get", "data check", "verify-proof"),
    *("keys make", "keys show", "keys rotate", "keys revoke"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(invoke: Invoke, command: str) -> None:
    printed = invoke(*command.split(), "--help")
    assert printed.exit_code == 0
    _, examples = printed.stdout.split("Example", 1)
    assert f"celm {command}" in examples


def test_every_command_is_in_the_list_above(invoke: Invoke) -> None:
    commands = [command.name for command in app.registered_commands]
    groups = {"data": data_app, "keys": keys_app}
    grouped = [
        f"{name} {command.name}" for name, group in groups.items() for command in group.registered_commands
    ]
    assert sorted(COMMANDS) == sorted([*map(str, commands), *grouped])


def test_list_shows_the_studies(invoke: Invoke) -> None:
    rows = json.loads(invoke("list", "studies", "--format=json").stdout)["studies"]
    assert {"main", "maverick", "free-rider"} <= {row["name"] for row in rows}
    assert all(row["summary"] and row["runs"] for row in rows)
    assert "maverick" in invoke("list", "studies").stdout


def test_list_of_studies_has_one_line_for_each(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = json.loads(invoke("list", "studies", "--format=json").stdout)["studies"]
    lines = invoke("list", "studies").stdout.splitlines()[1:-1]
    for row, line in zip(rows, lines, strict=True):
        name, methods, runs, summary = line.split(maxsplit=3)
        assert (name, int(methods), int(runs)) == (row["name"], len(row["methods"]), row["runs"])
        assert summary.strip() == row["summary"] or summary.endswith("…")


def test_list_without_a_kind_lists_the_kinds(invoke: Invoke) -> None:
    printed = invoke("list")
    assert printed.exit_code == 0
    rows = json.loads(invoke("list", "--format=json").stdout)["kinds"]
    assert [row["name"] for row in rows] == list(ListedKind)
    for row, line in zip(rows, printed.stdout.splitlines(), strict=False):
        assert line.split(maxsplit=2) == [row["name"], str(row["count"]), row["summary"]]
        listed = json.loads(invoke("list", row["name"], "--format=json").stdout)[row["name"]]
        assert row["count"] == len(listed)


@pytest.mark.parametrize("kind", list(REGISTRIES))
def test_list_shows_every_name_in_text_and_in_json(
    invoke: Invoke, kind: ListedKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = REGISTRIES[kind].names()
    assert names
    rows = json.loads(invoke("list", kind, "--format=json").stdout)[kind.value]
    assert [row["name"] for row in rows] == names
    assert all(row["summary"] for row in rows)
    assert all(set(setting) == {"name", "default", "about"} for row in rows for setting in row["settings"])
    lines = invoke("list", kind).stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == names
    assert [line.split(maxsplit=1)[1] for line in lines[:-1]] == [row["summary"] for row in rows]
    assert all(len(line) <= 80 for line in lines)


def test_list_ends_a_summary_that_is_too_long_with_an_ellipsis(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = invoke("list", "rules").stdout.splitlines()[:-1]
    assert all(len(line) == 40 and line.endswith("…") for line in lines)


def test_list_shows_one_component_in_full(invoke: Invoke) -> None:
    printed = invoke("list", "rules", "celm").stdout
    assert printed.startswith("celm: Class-wise contribution by logit maximization")
    for setting in REGISTRIES[ListedKind.rules].settings("celm"):
        default = "not set" if setting["default"] == "..." else setting["default"]
        assert f"rule.{setting['name']} = {default}" in printed
        assert setting["about"] in " ".join(printed.split())
    assert "rule.warmup = not set\n" in printed
    rows = json.loads(invoke("list", "rules", "celm", "--format=json").stdout)["rules"]
    assert [row["name"] for row in rows] == ["celm"]


def test_list_of_an_unknown_name_suggests_the_nearest(refused: Refused) -> None:
    message = refused("list", "rules", "shapfet")
    assert "shapfet" in message
    assert "shapfed" in message
    assert "no name" in refused("list", "studies", "main")


def test_list_of_something_unknown_is_refused(invoke: Invoke) -> None:
    assert invoke("list", "things").exit_code == 2


@pytest.mark.parametrize("split", ["pls", "sls", "dirichlet", "iid", "maverick", "free_rider", "frm"])
def test_split_says_who_holds_what_just_as_a_run_does(invoke: Invoke, split: str) -> None:
    document = json.loads(invoke("split", f"--split={split}", "--seed=43", "--format=json").stdout)
    assert document["split"] == split
    counts = document["counts"]
    assert all(name.startswith("client-") and len(row) == 10 for name, row in counts.items())
    if split in ("dirichlet", "iid"):
        assert sum(map(sum, counts.values())) == 1438
    again = invoke("run", f"--split={split}", "--seed=43", "--rounds=1", "--rule=fedavg", "--format=json")
    assert json.loads(again.stdout)["counts"] == counts


def test_split_as_text_and_as_a_picture(tmp_path: Path, invoke: Invoke) -> None:
    result = invoke("split", "--split=maverick", "--clients=4", "--out=split.svg")
    assert result.exit_code == 0
    assert "client-3" in result.stdout
    assert "rare classes: 7, 8, 9" in result.stdout
    assert "figure: split.svg" in result.stdout
    assert (tmp_path / "split.svg").read_text().startswith("<?xml")
    assert "figure: digits-frm-seed42.png" in invoke("split").stdout
    assert (tmp_path / "digits-frm-seed42.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set=split.min_labels=50"], "split.min_labels"),
        (["--split=natural"], "natural"),
        (["--out=picture.txt"], "picture.txt"),
    ],
)
def test_a_split_that_cannot_be_is_one_line(refused: Refused, arguments: list[str], message: str) -> None:
    assert message in refused("split", *arguments)


def test_data_list_and_check(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELM_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "80")
    rows = {
        row["name"]: row for row in json.loads(invoke("data", "list", "--format=json").stdout)["datasets"]
    }
    assert rows["digits"]["present"]
    assert (rows["digits"]["train"], rows["digits"]["test"]) == (1438, 359)
    lines = invoke("data", "list").stdout.splitlines()
    assert any(line.startswith("digits") for line in lines)
    assert all(len(line) <= 80 for line in lines if not line.startswith("downloads:"))
    # One line for each dataset, whatever the length of its folder.
    assert [line.split()[0] for line in lines[1 : 1 + len(rows)]] == list(rows)
    checked = json.loads(invoke("data", "check", "digits", "--format=json").stdout)["checked"]
    assert [(report["name"], report["problems"]) for report in checked] == [("digits", [])]
    assert "good" in invoke("data", "check", "digits").stdout


def test_data_check_of_something_unknown_is_one_line(refused: Refused) -> None:
    assert "did you mean 'digits'?" in refused("data", "check", "digit")
    assert "did you mean 'digits'?" in refused("data", "get", "digit")


def test_init_writes_a_file_that_runs_and_does_not_overwrite(
    tmp_path: Path, invoke: Invoke, refused: Refused
) -> None:
    assert invoke("init").exit_code == 0
    assert Experiment.read(tmp_path / "experiment.toml").rule.name == "celm"
    (tmp_path / "experiment.toml").write_text("mine")
    assert "experiment.toml already exists" in refused("init")
    assert (tmp_path / "experiment.toml").read_text() == "mine"
    assert "cannot write" in refused("init", "no/such/folder/a.toml")


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = module(Digits().load().test_inputs)
    return output


def test_exported_weights_are_the_model(tmp_path: Path, invoke: Invoke, run: celm.Run) -> None:
    assert invoke("export", run.folder, "--out=model.safetensors").exit_code == 0
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    shape, classes = json.loads(metadata["input_shape"]), json.loads(metadata["classes"])
    model = json.loads(metadata["model"])
    name = model.pop("name")
    module = build_model(name, model, tuple(shape), len(classes)).eval()
    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(logits(module), logits(run.model()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_exported_program_gives_the_same_outputs(tmp_path: Path, invoke: Invoke, run: celm.Run) -> None:
    result = invoke("export", run.folder, "--out=model.pt2")
    assert result.exit_code == 0, result.output
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(logits(program), logits(run.model()))
    assert program(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, refused: Refused, run: celm.Run) -> None:
    assert ".safetensors or .pt2" in refused("export", run.folder, "--out=model.onnx")
    assert "is not a run folder" in refused("export", tmp_path)
    assert "cannot write" in refused("export", run.folder, "--out=no/folder/model.safetensors")
