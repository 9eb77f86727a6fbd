"""Settings are resolved once, and every component is built once, on the way from the command line to the rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import celm
from celm.base.errors import CelmError
from celm.base.registry import Registry
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.runs import run_folder

SETTINGS: dict[str, dict[str, Any]] = {
    "dataset": {"name": "digits", "limit": 20},
    "split": {"name": "iid", "clients": 3},
    "model": {"name": "mlp", "widths": [8]},
    "rule": {"name": "fedavg"},
    "objective": {"name": "fedprox"},
    "probe": {"steps": 1},
    "filter": {"name": "clip_norm"},
    "aggregator": {"name": "median"},
    "attack": {"name": "copy_global", "client": "client-1"},
    "run": {"rounds": 2, "workers": 0},
}
COMPONENTS = [
    ("aggregator", "median"),
    ("attack", "copy_global"),
    ("dataset", "digits"),
    ("filter", "clip_norm"),
    ("model", "mlp"),
    ("objective", "fedprox"),
    ("rule", "fedavg"),
    ("rule", "shapfed"),
    ("split", "iid"),
]
OPTIONS = [
    "--observe=shapfed",
    "--workers=0",
    *(
        f"--set={table}.{key}={value}"
        for table, settings in SETTINGS.items()
        for key, value in settings.items()
    ),
]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Count how often each registry builds each name."""
    counts: Counter[tuple[str, str]] = Counter()
    build = Registry.build

    def counted(self: Registry[Any], name: str, *settings: Any) -> Any:
        counts[self.kind, name] += 1
        return build(self, name, *settings)

    monkeypatch.setattr(Registry, "build", counted)
    return counts


@pytest.fixture
def settings_access(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often settings.toml is read and written."""
    counts: Counter[str] = Counter()
    read, write = Experiment.read, run_folder.write_text

    def counted_read(path: Path) -> Experiment:
        counts["read"] += 1
        return read(path)

    def counted_write(path: Path, text: str) -> None:
        if path.name == "settings.toml":
            counts["write"] += 1
        write(path, text)

    monkeypatch.setattr(Experiment, "read", counted_read)
    monkeypatch.setattr(run_folder, "write_text", counted_write)
    return counts


def test_the_command_line_builds_each_component_once_and_writes_the_settings_once(
    invoke: Callable[..., Result], built: Counter[tuple[str, str]], settings_access: Counter[str]
) -> None:
    result = invoke("run", "--out=run", *OPTIONS)
    assert result.exit_code == 0, result.output
    assert sorted(built.elements()) == COMPONENTS
    assert settings_access == {"write": 1}


def test_python_builds_each_component_once_and_writes_the_settings_once(
    tmp_path: Path, built: Counter[tuple[str, str]], settings_access: Counter[str]
) -> None:
    celm.run(Experiment.parse({**SETTINGS, "observe": ["shapfed"]}), tmp_path / "run")
    assert sorted(built.elements()) == COMPONENTS
    assert settings_access == {"write": 1}


@pytest.mark.parametrize("from_python", [True, False])
def test_resume_builds_each_component_once_and_reads_the_settings_once(
    tmp_path: Path,
    invoke: Callable[..., Result],
    built: Counter[tuple[str, str]],
    settings_access: Counter[str],
    from_python: bool,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        celm.run(Experiment.parse({**SETTINGS, "observe": ["shapfed"]}), tmp_path / "run", stop)
    written = (tmp_path / "run" / "settings.toml").read_bytes()
    built.clear()
    settings_access.clear()
    if from_python:
        assert len(celm.resume(tmp_path / "run").rounds) == 2
    else:
        assert invoke("run", "--resume=run", "--workers=0").exit_code == 0
    assert sorted(built.elements()) == COMPONENTS
    assert settings_access == {"read": 1}
    assert (tmp_path / "run" / "settings.toml").read_bytes() == written


def test_settings_written_by_hand_are_completed_on_resume(
    tmp_path: Path, settings_access: Counter[str]
) -> None:
    experiment = Experiment.parse({**SETTINGS, "rule": "fedavg"})
    (tmp_path / "settings.toml").write_text(experiment.to_toml())
    celm.resume(tmp_path)
    assert settings_access == {"read": 1, "write": 1}
    assert (tmp_path / "settings.toml").read_text() == resolve_defaults(experiment).experiment.to_toml()


def test_the_federation_uses_the_components_that_were_resolved() -> None:
    resolved = resolve_defaults(Experiment.parse({**SETTINGS, "observe": ["shapfed"]}))
    federation = build_federation(resolved)
    assert federation.rule is resolved.rule
    assert federation.server.observers is resolved.observers
    assert federation.trainer.objective is resolved.objective
    assert (federation.server.filter, federation.server.aggregator) == (resolved.filter, resolved.aggregator)
    assert federation.attacks == {"client-1": resolved.attack}
    assert federation.experiment is resolved.experiment


def test_defaults_of_the_dataset_fill_what_is_not_set() -> None:
    resolved = resolve_defaults(Experiment()).experiment
    assert (resolved.split.name, resolved.split.seed, resolved.model.name) == ("frm", 42, "mlp")
    assert resolved.split.options == {"kind": "copy_global"}
    assert resolve_defaults(Experiment(split="frm")).experiment.split.options == {}
    assert (resolved.train.lr, resolved.run.rounds, resolved.run.validation) == (0.1, 100, 0.0)


@pytest.mark.parametrize(
    ("table", "split"),
    [
        ({"clients": 1}, "iid"),
        ({"clients": 2}, "iid"),
        ({"clients": 3}, "frm"),
        ({"clients": 2, "name": "maverick"}, "maverick"),
    ],
)
def test_too_few_clients_for_the_default_split_get_equal_parts(table: dict[str, Any], split: str) -> None:
    resolved = resolve_defaults(Experiment(split=table))
    assert resolved.experiment.split.name == split
    build_federation(resolved)


@pytest.mark.parametrize("named", [{"name": "frm"}, {"kind": "noise"}])
def test_a_split_that_the_user_chose_is_not_replaced(named: dict[str, str]) -> None:
    with pytest.raises(CelmError, match=r"split\.clients.*at least 3"):
        build_federation(resolve_defaults(Experiment(split={"clients": 2, **named})))


@pytest.mark.parametrize(
    ("tables", "options"),
    [
        ({}, {"max_samples": 2000, "min_samples": 100}),
        ({"split": {"min_samples": 7}}, {"min_samples": 7, "max_samples": 2000}),
        ({"split": {"clients": 6}}, {}),
        ({"dataset": {"limit": 10}}, {}),
        ({"split": {"name": "iid"}}, {}),
    ],
)
def test_the_paper_s_split_settings_hold_for_the_paper_s_size_only(
    tables: dict[str, Any], options: dict[str, int]
) -> None:
    tables = {**tables, "dataset": {"name": "cifar10", **tables.get("dataset", {})}}
    assert resolve_defaults(Experiment.parse(tables)).experiment.split.options == options
