"""Settings are typed and closed, and written and read without change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.attacks import attacks
from celm.base.errors import CelmError
from celm.cli.options import experiment_from
from celm.data.registry import datasets, splits
from celm.experiment.config import Experiment, ProbeConfig, RunConfig, read_toml
from celm.experiment.overrides import apply_override
from celm.experiment.template import render_template
from celm.federation.build import resolve_defaults
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules

WRONG = {
    "unknown table": ({"trian": {}}, r"unknown setting 'trian'.*did you mean 'train'"),
    "unknown key": (
        {"train": {"momentun": 0.9}},
        r"unknown setting 'train.momentun'.*did you mean 'momentum'",
    ),
    "unknown key of run": ({"run": {"round": 3}}, r"unknown setting 'run.round'.*did you mean 'rounds'"),
    "no table": ({"run": 3}, r"setting 'run'"),
    "text for a number": ({"train": {"lr": "fast"}}, r"setting 'train.lr': .*number.*'fast'"),
    "number as text": ({"run": {"rounds": "3"}}, r"setting 'run.rounds': .*integer.*'3'"),
    "fraction for a count": ({"run": {"rounds": 2.5}}, r"setting 'run.rounds'.*2\.5"),
    "truth for a count": ({"run": {"rounds": True}}, r"setting 'run.rounds'.*True"),
    "no rounds": ({"run": {"rounds": 0}}, r"setting 'run.rounds': .*greater than or equal to 1.*0"),
    "no clients": ({"split": {"clients": 0}}, r"setting 'split.clients'"),
    "negative rate": ({"train": {"lr": -0.1}}, r"setting 'train.lr': .*greater than 0"),
    "infinite rate": ({"train": {"lr": float("inf")}}, r"setting 'train.lr'"),
    "rate that is no number": ({"train": {"lr": float("nan")}}, r"setting 'train.lr'"),
    "too much participation": ({"run": {"participation": 1.1}}, r"setting 'run.participation'"),
    "no participation": ({"run": {"participation": 0}}, r"setting 'run.participation'"),
    "negative seed": ({"run": {"seed": -1}}, r"setting 'run.seed'"),
    "too large a seed": ({"run": {"seed": 2**32}}, r"setting 'run.seed'"),
    "in a list": ({"train": {"decay_at": [10, "x"]}}, r"setting 'train.decay_at.1'"),
    "unknown dataset": ({"dataset": {"name": "digit"}}, r"unknown dataset 'digit'.*did you mean 'digits'"),
    "unknown split": (
        {"split": {"name": "dirichelt"}},
        r"unknown split 'dirichelt'.*did you mean 'dirichlet'",
    ),
    "unknown model": ({"model": "mpl"}, r"model 'mpl'.*did you mean 'mlp'"),
    "unknown rule": ({"rule": "fedagv"}, r"unknown rule 'fedagv'.*did you mean 'fedavg'"),
    "unknown objective": ({"objective": "plian"}, r"unknown objective 'plian'.*'plain'"),
    "unknown attack": ({"attack": "copy_globl"}, r"unknown attack 'copy_globl'.*'copy_global'"),
}
WRONG_WITHIN = {
    "rule": (
        {"rule": {"name": "celm", "warmpu": 3}},
        r"unknown setting 'rule.warmpu' of rule 'celm'.*'warmup'",
    ),
    "rule's range": ({"rule": {"beta": 1.0}}, r"setting 'rule.beta'"),
    "rule's kind": ({"rule": {"name": "fedavg", "by_size": "yes"}}, r"setting 'rule.by_size'"),
    "split": ({"split": {"name": "pls", "alpha": 0.1}}, r"unknown setting 'split.alpha' of split 'pls'"),
    "split's range": ({"split": {"name": "dirichlet", "alpha": 0}}, r"setting 'split.alpha'"),
    "objective": ({"objective": {"mu": 0.1}}, r"unknown setting 'objective.mu'.*has no settings"),
    "attack": ({"attack": {"name": "copy_global", "strenght": 1}}, r"'attack.strenght'.*'strength'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_named_with_the_nearest_valid_one(name: str) -> None:
    tables, message = WRONG[name]
    with pytest.raises(CelmError, match=message) as error:
        Experiment.parse(tables)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", WRONG_WITHIN)
def test_a_wrong_setting_of_a_component_is_named_too(name: str) -> None:
    tables, message = WRONG_WITHIN[name]
    with pytest.raises(CelmError, match=message):
        resolve_defaults(Experiment.parse(tables))


def test_names_may_stand_for_tables() -> None:
    short = Experiment(dataset="digits", rule="fedavg", run={"rounds": 3})
    assert short.dataset.name == "digits"
    assert short.rule.name == "fedavg"
    assert short.run.rounds == 3
    assert short == Experiment.parse({"rule": {"name": "fedavg"}, "run": {"rounds": 3}})


def test_settings_of_a_default_component_need_no_name() -> None:
    assert Experiment.parse({"rule": {"beta": 0.7}}).rule.name == "celm"
    assert experiment_from(None, {}, ["rule.warmup=2"]).rule.options == {"warmup": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("split.alpha=0.05", 0.05),
        ("split.alpha = 5", 5),
        ("split.name=dirichlet", "dirichlet"),
        ('split.name="dirichlet"', "dirichlet"),
        ("split.x=[1, 2]", [1, 2]),
        ("split.x=true", True),
        ("split.x=a=b", "a=b"),
        ("split.x=", ""),
        ("split.x=pkg.module:factory", "pkg.module:factory"),
    ],
)
def test_an_assignment_is_read_as_toml_and_else_as_text(text: str, value: Any) -> None:
    tables: dict[str, Any] = {}
    apply_override(tables, text)
    assert list(tables["split"].values()) == [value]


@pytest.mark.parametrize("text", ["", "x", "split", "split=3", "split.=3", "=3", ".alpha=3", "splt.alpha=3"])
def test_what_is_not_an_assignment_is_refused(text: str) -> None:
    with pytest.raises(CelmError):
        apply_override({}, text)


def test_an_assignment_into_something_else_than_a_table_is_refused() -> None:
    with pytest.raises(CelmError, match="'run' must be a table"):
        apply_override({"run": 3}, "run.rounds=3")


def test_an_option_wins_over_the_file_and_an_assignment_over_both(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[run]\nrounds = 1\nseed = 1\n[split]\nname = "dirichlet"\nalpha = 0.5\n')
    option_values = {"rounds": 2, "seed": 2, "split": None}
    experiment = experiment_from(file, option_values, ["run.seed=3"])
    assert (experiment.run.rounds, experiment.run.seed, experiment.split.options) == (2, 3, {"alpha": 0.5})


def test_another_name_by_option_drops_the_settings_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'rule = { name = "celm", warmup = 3 }\n'
        'split = { name = "dirichlet", alpha = 0.5, clients = 7, seed = 9 }\n'
        'dataset = { name = "folder", path = "x" }\n'
    )
    experiment = experiment_from(file, {"rule": "fedavg", "split": "pls", "dataset": "digits"}, None)
    assert experiment.rule.options == experiment.split.options == experiment.dataset.options == {}
    assert (experiment.split.clients, experiment.split.seed) == (7, 9)
    same = experiment_from(file, {"rule": "celm", "split": "dirichlet"}, None)
    assert same.rule.options == {"warmup": 3}
    assert same.split.options == {"alpha": 0.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [("run = [", "cannot read"), ("run.day = 2024-01-01", "run.day"), ("\0", "cannot read")],
)
def test_a_file_that_does_not_hold_settings_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(content)
    with pytest.raises(CelmError, match=message):
        experiment_from(file, {}, None)


def table(required: dict[str, Any], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


positive = st.floats(1e-6, 1e3)
option = (
    st.integers(-5, 5)
    | positive
    | st.booleans()
    | st.text(max_size=5)
    | st.lists(st.integers(0, 9), max_size=3)
)


def component(registry: Any, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(registry.names())
    return names | table({"name": names}, custom=option, **optional)


experiments = table(
    {},
    dataset=component(datasets),
    split=component(splits, clients=st.integers(1, 100), seed=st.integers(0, 2**32 - 1)),
    model=component(models, head=st.text(max_size=5)),
    rule=component(rules),
    objective=component(objectives),
    attack=component(attacks),
    train=table(
        {}, lr=positive, decay_at=st.lists(st.integers(0, 99)), decay=positive, batch=st.integers(1, 999)
    ),
    probe=table({}, steps=st.integers(0, 300), lr=positive, l2=st.floats(0, 1), chunk=st.integers(1, 99)),
    run=table(
        {},
        rounds=st.integers(1, 999),
        seed=st.integers(0, 2**32 - 1),
        participation=st.floats(0, 1, exclude_min=True),
        local_heads=st.integers(0, 9),
        workers=st.integers(0, 9),
        device=st.text(max_size=5),
    ),
)


@given(experiments)
def test_settings_written_as_toml_are_read_back_the_same(
    tmp_path_factory: Any, tables: dict[str, Any]
) -> None:
    first = Experiment.parse(tables)
    file = tmp_path_factory.getbasetemp() / "written.toml"
    file.write_bytes(first.to_toml().encode())
    assert Experiment.read(file) == first
    assert Experiment.parse(first.to_dict()) == first


def test_resolving_again_changes_nothing() -> None:
    once = resolve_defaults(
        Experiment.parse({"split": {"name": "dirichlet"}, "run": {"rounds": 40}})
    ).experiment
    assert resolve_defaults(once).experiment == once
    assert once.run.local_heads == 2
    assert once.split.seed == once.run.seed == 42
    assert once.model.name == "mlp"


def test_the_template_is_valid_and_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(render_template())
    assert resolve_defaults(Experiment.read(file)).experiment == resolve_defaults(Experiment()).experiment
    template = file.read_text()
    for name in ("rounds", "participation", "decay_at", "warmup", "beta", "widths", "labels", "workers"):
        assert f"\n# {name} = " in template


@pytest.mark.parametrize("keep", [lambda line: True, lambda line: '"by default"' not in line])
def test_the_template_s_commented_tables_are_those_of_an_experiment(
    tmp_path: Path, keep: Callable[[str], bool]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("\n".join(filter(keep, render_template().splitlines())))
    assert set(read_toml(file)) <= set(Experiment.model_fields)


def test_the_rate_falls_once_after_round_50() -> None:
    train = resolve_defaults(Experiment()).experiment.train
    assert train.decay_at == (50,)
    assert train.lr_at(1) == train.lr_at(50) == train.lr
    assert train.lr_at(51) == train.lr_at(100) == pytest.approx(0.1 * train.lr_at(50))
    twice = Experiment.parse({"train": {"lr": 1.0, "decay_at": [2, 4], "decay": 0.5}}).train
    assert [twice.lr_at(t) for t in range(1, 7)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_a_rate_that_is_not_resolved_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="not resolved"):
        Experiment().train.lr_at(1)


def test_a_probe_has_a_name_or_settings_or_both() -> None:
    fast = Experiment.parse({"probe": "fast"}).probe
    assert (fast.steps, fast.lr, fast.l2) == (50, 0.04, 1e-3)
    assert fast.steps * fast.lr == pytest.approx(ProbeConfig().steps * ProbeConfig().lr)
    assert Experiment.parse({"probe": "exact"}).probe == ProbeConfig()
    assert Experiment.parse({"probe": {"name": "fast", "l2": 0.0}}).probe.l2 == 0.0
    tables: dict[str, Any] = {}
    apply_override(tables, "probe=fast")
    apply_override(tables, "rule=fedavg")
    parsed = Experiment.parse(tables)
    assert (parsed.probe.steps, parsed.rule.name) == (50, "fedavg")
    assert Experiment.parse(parsed.to_dict()) == parsed
    with pytest.raises(CelmError, match=r"unknown probe 'fats'.*fast"):
        Experiment.parse({"probe": "fats"})
    with pytest.raises(CelmError, match="not a setting"):
        apply_override({}, "probe.=fast")


def test_conditions_of_the_training_are_sentences() -> None:
    warmup = "Warm-up: in rounds 1-5 of 100, clients keep their own classifier head."
    held_out = "10% of each client's samples are held out."
    assert RunConfig(rounds=100, local_heads=5).describe_conditions() == warmup
    assert (
        RunConfig(rounds=100, local_heads=5, validation=0.1).describe_conditions() == f"{warmup} {held_out}"
    )
    assert RunConfig(rounds=100).describe_conditions() == ""
