"""Keywords of `celm.Experiment` are the options of `celm run`, and wrong ones are errors of one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.cli.options import experiment_from
from celm.experiment.config import Experiment
from celm.experiment.keywords import KEYWORDS

VALUES: dict[str, Any] = {
    "clients": 7,
    "rounds": 3,
    "seed": 5,
    "participation": 0.5,
    "evidence": "head",
    "idle_check": "never",
    "workers": 2,
    "device": "meta",
}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_is_the_option_of_this_name(keyword: str) -> None:
    experiment = Experiment(**{keyword: VALUES[keyword]})
    assert experiment == experiment_from(None, {keyword: VALUES[keyword]}, None)
    table, key = KEYWORDS[keyword]
    assert experiment.to_dict()[table][key] == VALUES[keyword]


def test_keywords_join_the_tables_beside_them() -> None:
    experiment = Experiment(rule="celm", evidence="head", split={"name": "pls"}, clients=7, seed=None)
    assert experiment.rule.options == {"evidence": "head"}
    assert (experiment.split.name, experiment.split.clients) == ("pls", 7)
    assert experiment.run.seed == Experiment().run.seed
    assert Experiment(observe="shapfed, cgsv") == Experiment(observe=["shapfed", "cgsv"])


def test_a_preset_is_that_of_the_command_line() -> None:
    assert Experiment(preset="trust", rounds=9) == experiment_from(None, {"rounds": 9}, None, "trust")
    assert Experiment(preset="trust", idle_check="never").rule.options["idle_check"] == "never"


def test_a_path_is_a_folder_of_the_users_data(tmp_path: Path) -> None:
    for path in (tmp_path, str(tmp_path)):
        dataset = Experiment(dataset=path).dataset
        assert (dataset.name, dataset.options) == ("folder", {"path": str(tmp_path)})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"rounds": 3, "run": {"rounds": 4}}, r"'run\.rounds' is given twice"),
        ({"rounds": "3"}, r"'run\.rounds': .*integer.*'3'"),
        ({"clients": 0}, r"'split\.clients'"),
        ({"seeds": 3}, r"unknown setting 'seeds'.*did you mean 'seed'"),
        ({"idle_chek": "never"}, "did you mean 'idle_check'"),
        ({"lr": 0.1}, r"write train=\{'lr': 0\.1\}"),
        ({"preset": "trsut"}, "unknown preset 'trsut'.*did you mean 'trust'"),
        ({"preset": 3}, "preset must be a name: 3"),
        ({"rule": 3}, "'rule': 3 is neither a name nor a table"),
        ({"dataset": "./nowhere"}, r"no folder \./nowhere"),
        ({"train": {"day": object}}, r"'train\.day' has an unsupported type"),
    ],
)
def test_a_wrong_keyword_is_one_line(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(CelmError, match=message) as error:
        Experiment(**keywords)
    assert "\n" not in str(error.value)
