"""`celm.register`: a rule of this process by name, in runs, comparisons and errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import celm
from celm.rules import rules
from celm.rules.fedavg import FedAvg


@pytest.fixture
def registered() -> Iterator[None]:
    @celm.register("rules")
    @dataclass(frozen=True)
    class PlainMean(FedAvg):
        """The rule FedAvg under another name."""

    yield
    rules.registered.clear()
    rules.objects.clear()


@pytest.mark.usefixtures("registered")
def test_a_registered_rule_gives_what_the_rule_gives(tmp_path: Path) -> None:
    few = {"split": "iid", "clients": 2, "rounds": 2}
    with pytest.warns(UserWarning, match="do not save rule 'plain_mean'"):
        own = celm.run(celm.Experiment(rule="plain_mean", **few), tmp_path / "own")
    known = celm.run(celm.Experiment(rule="fedavg", **few), tmp_path / "known")
    assert (own.folder / "rounds.jsonl").read_bytes() == (known.folder / "rounds.jsonl").read_bytes()
    with pytest.warns(UserWarning, match="do not save rule 'plain_mean'"):
        both = celm.compare(["plain_mean", "fedavg"], [42], out=tmp_path / "both", **few)
    assert both.to_dataframe()["accuracy"].tolist() == [own.accuracy, known.accuracy]
    rules.registered.clear()
    rules.objects.clear()
    assert celm.load(own.folder).weights == own.weights
    with pytest.raises(celm.CelmError, match="unknown rule 'plain_mean'"):
        celm.Experiment(rule="plain_mean")


@pytest.mark.usefixtures("registered")
def test_a_study_of_your_own_takes_registered_names(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        "title = 'mine'\nmetrics = ['accuracy']\nseeds = [1]\n[methods]\nfedavg = {}\nplain_mean = {}\n"
        "[[rows]]\ndataset = 'digits'\nsplit = { name = 'iid', clients = 2 }\nrun = { rounds = 1 }\n"
    )
    study = celm.study(tmp_path / "mine.toml", out=tmp_path / "out")
    accuracy = study.to_dataframe().set_index("method")["accuracy"]
    assert accuracy["plain_mean"] == accuracy["fedavg"]


def test_wrong_registrations_are_one_line() -> None:
    with pytest.raises(celm.CelmError, match="did you mean 'rules'"):
        celm.register("rule")
    with pytest.raises(celm.CelmError, match="not a dataclass"):
        celm.register("rules")(int)
    with pytest.raises(celm.CelmError, match="celm has one of this name"):
        celm.register("rules", "fedavg")(FedAvg)
    assert "plain_mean" not in rules.names()
