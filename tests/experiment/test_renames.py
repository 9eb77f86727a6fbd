"""A renamed setting or option is an error that says the new name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import celm
from celm.base.errors import CelmError
from celm.base.registry import Configurable
from celm.cli import main
from celm.experiment.config import Experiment
from celm.federation.build import resolve_defaults

Refused = Callable[..., str]

# From the contract.
SETTINGS = {
    ("rule", "reprobe"): ("on-drift", "rule.idle_check"),
    ("rule", "settle"): (0.05, "rule.warmup_tolerance"),
    ("rule", "least"): (3, "rule.min_warmup"),
    ("rule", "fraction"): (0.1, "rule.warmup_fraction"),
    ("rule", "remember"): (5, "rule.global_history"),
    ("combine", "name"): ("median", "aggregator"),
    ("probe", "keep"): (False, "probe.keep_inputs"),
    ("attack", "first"): (2, "attack.first_round"),
    ("attack", "last"): (3, "attack.last_round"),
}
AUDIT_SETTINGS = {
    "returns": ("softmax", "output"),
    "hold": ("x.safetensors", "fixed_inputs"),
    "starts": (3, "num_starts"),
}


def tables_with(table: str, key: str, value: Any) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {table: {key: value}}
    if table == "attack":
        tables["attack"]["name"] = "copy_global"
    return tables


def to_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@pytest.mark.parametrize(("setting", "expected"), SETTINGS.items(), ids=map(".".join, SETTINGS))
def test_an_old_setting_in_python(setting: tuple[str, str], expected: tuple[Any, str]) -> None:
    value, new_name = expected
    with pytest.raises(CelmError, match=rf"unknown setting .*renamed: use '{new_name}'"):
        Experiment(**tables_with(*setting, value))


@pytest.mark.parametrize(("setting", "expected"), SETTINGS.items(), ids=map(".".join, SETTINGS))
def test_an_old_setting_in_a_file(
    tmp_path: Path, refused: Refused, setting: tuple[str, str], expected: tuple[Any, str]
) -> None:
    value, new_name = expected
    lines = [
        f"[{table}]\n" + "".join(f"{key} = {to_toml(entry)}\n" for key, entry in settings.items())
        for table, settings in tables_with(*setting, value).items()
    ]
    (tmp_path / "old.toml").write_text("".join(lines))
    assert f"renamed: use '{new_name}" in refused("run", "old.toml", "--out=run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("setting", "expected"), SETTINGS.items(), ids=map(".".join, SETTINGS))
def test_an_old_setting_on_the_command_line(
    tmp_path: Path, refused: Refused, setting: tuple[str, str], expected: tuple[Any, str]
) -> None:
    value, new_name = expected
    more = ["--set=attack.name=copy_global"] if setting[0] == "attack" else []
    line = refused("run", *more, f"--set={'.'.join(setting)}={to_toml(value)}", "--out=run")
    assert f"renamed: use '{new_name}" in line
    assert not (tmp_path / "run").exists()


def test_an_old_table_given_by_name(refused: Refused) -> None:
    assert "renamed: use 'aggregator'" in refused("run", "--set=combine=median")


def test_an_old_setting_of_an_observer() -> None:
    with pytest.raises(CelmError, match=r"renamed: use 'rule\.warmup_tolerance'"):
        Experiment(observe=[{"name": "celm", "settle": 0.1}])


def test_a_component_may_have_a_setting_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Decaying(Configurable):
        first: int = 1
        first_round: int = 1

    monkeypatch.setattr("celm.attacks.attacks.load", lambda name: Decaying)
    experiment = Experiment(attack={"name": "copy_global", "first": 2})
    assert experiment.attack is not None
    assert experiment.attack.options == {"first": 2}


def test_a_component_that_never_had_the_setting_is_not_said_to_have_it() -> None:
    with pytest.raises(CelmError, match=r"unknown setting 'rule\.reprobe' of rule 'fedavg'") as refused:
        resolve_defaults(Experiment(rule={"name": "fedavg", "reprobe": "never"}))
    assert "renamed" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "new_name"),
    [
        ("run --reprobe on-drift", "--idle-check"),
        ("run --reprobe=never", "--idle-check"),
        ("run --combine median", "--set aggregator.name=NAME"),
        ("compare --reprobe never", "--set rule.idle_check=WHEN"),
        ("compare --combine=median", "--set aggregator.name=NAME"),
        ("audit --starts 3", "--num-starts"),
        ("audit --returns softmax", "--set output=KIND"),
        ("audit --hold x.safetensors", "--set fixed_inputs=FILE"),
    ],
)
def test_an_old_option(
    line: str, new_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["celm", *line.split()])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert printed.out == ""
    old_option = line.split()[1].partition("=")[0]
    assert printed.err == f"error: No such option '{old_option}'. (renamed: use '{new_name}')\n"


@pytest.mark.parametrize("line", ["report x --reprobe=never", "run --hold=x", "audit --combine=median"])
def test_an_old_option_of_another_command_is_only_unknown(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["celm", *line.split()])
    with pytest.raises(SystemExit):
        main()
    assert "renamed" not in capsys.readouterr().err


@pytest.mark.parametrize(("setting", "expected"), AUDIT_SETTINGS.items())
def test_an_old_setting_of_the_audit(refused: Refused, setting: str, expected: tuple[Any, str]) -> None:
    value, new_name = expected
    with pytest.raises(CelmError, match=rf"'{setting}'.*renamed: use '{new_name}'"):
        celm.audit("g.pt", "clients", classes=2, model="mlp", input_shape=(4,), **{setting: value})
    audit = ("audit", "--clients=x", "--model=mlp", "--classes=2", "--input-shape=4")
    assert f"renamed: use '{new_name}'" in refused(*audit, f"--set={setting}={to_toml(value)}")
    assert "renamed: use 'probe.keep_inputs'" in refused(*audit, "--set=probe.keep=false")


def test_an_old_keyword_argument_of_the_flower_strategy() -> None:
    pytest.importorskip("flwr")
    from celm.flower import CelmStrategy

    model, shape, classes = nn.Linear(4, 2), (4,), 2
    with pytest.raises(CelmError, match=r"'combine' of CelmStrategy .*'aggregator'"):
        CelmStrategy(model, shape, classes, combine="median")
    with pytest.raises(CelmError, match=r"'rule\.reprobe'.*'rule\.idle_check'"):
        CelmStrategy(model, shape, classes, rule_options={"reprobe": "on-drift"})
    with pytest.raises(CelmError, match=r"'probe\.keep'.*'probe\.keep_inputs'"):
        CelmStrategy(model, shape, classes, probe={"keep": False})
    with pytest.raises(TypeError, match="'nonsense'"):
        CelmStrategy(model, shape, classes, nonsense=1)
