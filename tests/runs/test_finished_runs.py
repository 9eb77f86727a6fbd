"""What a finished run leaves: a model that works whatever the objective, evidence of everybody, honest words."""

from __future__ import annotations

import json

import pytest
import torch

import celm
from celm.objectives import objectives

SMALL = {"split": {"name": "pls", "clients": 3}, "probe": {"steps": 5}, "run": {"rounds": 2, "workers": 0}}


@pytest.mark.parametrize("objective", objectives.names())
def test_the_model_of_a_run_is_the_one_that_was_judged(objective, tmp_path):
    run = celm.run(celm.Experiment.parse({**SMALL, "objective": objective}), out=tmp_path / "run")
    model = run.model()
    from celm.data.sources.digits import Digits

    data = Digits().load()
    with torch.no_grad():
        right = (model(data.test_inputs).argmax(1) == data.test_labels).float().mean().item()
    assert right == pytest.approx(run.accuracy, abs=1e-6)


@pytest.mark.parametrize("value", ["nan", "inf", "[0.1, nan]"])
def test_a_setting_that_is_no_finite_number_is_refused_and_leaves_nothing_behind(value, tmp_path, invoke):
    result = invoke("run", f"--set=rule.beta={value}")
    assert result.exit_code == 2
    assert "beta" in result.stderr
    assert "finite" in result.stderr
    assert not list(tmp_path.glob("runs/*"))


def test_an_empty_folder_of_the_users_own_stays(tmp_path, invoke):
    (tmp_path / "mine").mkdir()
    assert invoke("run", "--out=mine", "--device=nowhere").exit_code == 2
    assert (tmp_path / "mine").is_dir()
    assert not list((tmp_path / "mine").iterdir())


def test_evidence_of_clients_absent_from_the_last_probe_is_kept(tmp_path):
    tables = {**SMALL, "split": {"name": "pls", "clients": 6}, "rule": {"name": "celm", "warmup": 4}}
    tables["run"] = {"rounds": 4, "workers": 0, "participation": 0.5}
    run = celm.run(celm.Experiment.parse(tables), out=tmp_path / "run")
    probed = {name for record in run.rounds for name in record["evidence"]}
    assert set(run.evidence) == probed
    assert len(probed) > 3
    for name in probed:
        last = [record["evidence"][name] for record in run.rounds if name in record["evidence"]][-1]
        assert run.evidence[name] == last


def test_clients_that_diverge_are_named_on_screen(tmp_path, invoke):
    settings = ("--rounds=2", "--clients=3", "--set=probe.steps=5", "--set=train.lr=1e9", "--out=run")
    result = invoke("run", *settings)
    assert result.exit_code == 0
    assert "logits are not finite" in result.stdout or "excluded: client-" in result.stdout


@pytest.mark.parametrize(
    ("name", "content"), [("result.json", "{}"), ("result.json", "[]"), ("rounds.jsonl", "")]
)
def test_a_damaged_finished_run_is_said_so_in_one_line(name, content, tmp_path, invoke):
    celm.run(celm.Experiment.parse(SMALL), out=tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    result = invoke("run", "--resume=run", "--format=json")
    assert result.exit_code == 2
    assert name in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_lost_seconds_do_not_stop_a_resume(tmp_path):
    whole = celm.run(celm.Experiment.parse(SMALL), out=tmp_path / "run")
    for name in ("result.json", "times.jsonl"):
        (tmp_path / "run" / name).unlink()
    assert celm.resume(tmp_path / "run").weights == whole.weights


def test_a_name_wins_over_a_folder_that_is_called_so(tmp_path, invoke):
    (tmp_path / "digits").mkdir()
    found = json.loads(invoke("split", "--dataset=digits", "--format=json").stdout)
    assert found["dataset"] == "digits"
