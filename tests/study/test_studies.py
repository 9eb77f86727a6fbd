"""Studies: declarations, filters, scales, the paper's cells, and a smoke run of each."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner

from celm.base.errors import CelmError
from celm.cli.app import app
from celm.data.registry import splits
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.report.build import build_report
from celm.rules.celm import Celm
from celm.study import cost_estimate
from celm.study.declarations import study_names
from celm.study.local_pool import ProcessPool
from celm.study.paper_results import paper_value
from celm.study.plan import plan_runs
from celm.study.results import count_rounds_done, merge_existing
from celm.study.scales import QUICK_LIMIT, Scale, apply_scale, rows_for_scale
from celm.study.scheduler import run_all
from celm.study.spec import StudySpec, load_study
from celm.study.study_folder import save_errors

NAMES = study_names()


def test_every_table_of_the_paper_has_a_study():
    papers = {load_study(name).paper for name in NAMES}
    assert {
        "main",
        "maverick",
        "free-rider",
        "heterogeneity",
        "fidelity",
        "iid",
        "clients-20",
        "classes-47",
        "warmup",
    } <= papers


def test_the_study_of_estimators_has_a_column_for_every_kind_of_evidence():
    methods = load_study("estimators").methods.values()
    kinds = get_args(get_type_hints(Celm)["evidence"])
    assert len(kinds) >= 3
    settings = [method.settings.get("rule", {}).get("evidence", "paper") for method in methods]
    assert set(kinds) <= set(settings)


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_of_a_study_resolves_at_every_scale(name, tmp_path):
    study = load_study(name)
    for scale in Scale:
        cells = plan_runs(study, scale, tmp_path)
        seeds = len(study.seeds) if scale is Scale.paper else 1
        assert (
            len(cells) == sum(len(study.methods_for_row(row)) for row in rows_for_scale(study, scale)) * seeds
        )
        assert len({cell.folder for cell in cells.values()}) == len(cells)
        for cell in cells.values():
            assert cell.experiment.run.rounds
            assert cell.experiment.train.lr
            if scale is Scale.smoke:
                assert cell.experiment.dataset.name == "digits"
                assert cell.rounds == 3


def test_paper_scale_is_the_papers_protocol(tmp_path):
    cells = plan_runs(load_study("main"), Scale.paper, tmp_path)
    fashion = cells["fashion_mnist pls", "celm", 42].experiment
    assert (fashion.run.rounds, fashion.train.lr, fashion.train.batch, fashion.train.epochs) == (
        100,
        0.1,
        128,
        1,
    )
    assert (fashion.probe.steps, fashion.probe.lr, fashion.probe.l2, fashion.run.local_heads) == (
        200,
        0.01,
        1e-3,
        5,
    )
    cifar = cells["cifar10 pls", "celm", 42].experiment
    assert (cifar.run.rounds, cifar.model.name, cifar.split.options["max_samples"]) == (200, "cnn", 2000)
    assert cells["fashion_mnist pls", "cgsv", 42].experiment.rule.options == {"protocol": "keep"}


@pytest.mark.parametrize(
    ("name", "row", "method", "metric", "expected"),
    [
        ("main", 3, "celm", "accuracy", "83.70 ± 0.19"),
        ("maverick", 0, "celm", "rare_class_accuracy", "90.77 ± 0.24"),
        ("maverick", 0, "celm", "balanced_accuracy", "87.32 ± 0.10"),
        ("free-rider", 1, "cgsv", "auroc", "0.790"),
        ("free-rider", 1, "celm", "fpr", "0.080"),
        ("fidelity", 0, "celm", "jsd", "0.294"),
        ("fidelity", 0, "celm", "jsd_uniform", "0.613"),
        ("fidelity", 4, "celm", "hellinger", "0.286"),
        ("classes-47", 4, "cffl", "accuracy", "86.18 ± 0.45"),
        ("clients-20", 0, "celm", "accuracy", "78.71 ± 1.22"),
        ("warmup", 1, "30", "accuracy", "84.14 ± 0.51"),
        ("heterogeneity", 1, "celm+fedrs", "balanced_accuracy", "85.96 ± 0.33"),
        ("fedisic", 0, "celm", "balanced_accuracy", "70.18 ± 0.58"),
        ("iid", 1, "cgsv", "accuracy", "62.65 ± 1.41"),
    ],
)
def test_the_papers_figure_stands_beside_its_cell(name, row, method, metric, expected):
    study = load_study(name)
    place = study.rows[row]
    found = paper_value(study.paper, place.settings["dataset"]["name"], place.split_label, method, metric)
    assert found is not None
    assert found.format() == expected


def test_figures_of_other_metrics_and_of_other_definitions_stand_nowhere():
    assert paper_value("main", "fashion_mnist", "pls", "celm", "jsd") is None
    assert paper_value("fidelity", "fashion_mnist", "pls", "celm", "jsd") is not None
    assert paper_value("fidelity", "fashion_mnist", "pls", "celm", "emd") is None


def test_smoke_keeps_probes_of_different_length_apart(tmp_path):
    cells = plan_runs(load_study("lm-grid"), Scale.smoke, tmp_path, "dataset=fashion_mnist split=pls")
    grid = {(cell.experiment.probe.steps, cell.experiment.probe.lr) for cell in cells.values()}
    assert len(grid) == len(cells) == 25
    assert sorted({steps for steps, _ in grid}) == [1, 2, 3, 5, 10]
    usual = plan_runs(load_study("ablations"), Scale.smoke, tmp_path, "split=pls")
    assert {cell.experiment.probe.steps for cell in usual.values()} == {5}


def test_only_keeps_a_part(tmp_path):
    study = load_study("main")
    cells = plan_runs(
        study, Scale.paper, tmp_path, "dataset=fashion_mnist split=dirichlet_0.05 method=celm seed=43"
    )
    assert list(cells) == [("fashion_mnist dirichlet_0.05", "celm", 43)]
    assert len(plan_runs(study, Scale.paper, tmp_path, "split=dirichlet method=celm")) == 18
    assert len(plan_runs(study, Scale.paper, tmp_path, "split=pls,sls method=fedavg,celm seed=42")) == 8
    assert len(plan_runs(study, Scale.paper, tmp_path, "split=pls split=sls method=celm seed=42")) == 4
    for wrong in ("split=nowhere", "colour=red", "pls", "method=celm,clem", "seed=42,1", "method='celm"):
        with pytest.raises(CelmError, match="--only"):
            plan_runs(study, Scale.paper, tmp_path, wrong)
    with pytest.raises(CelmError, match="did you mean 'celm'"):
        plan_runs(study, Scale.paper, tmp_path, "method=clem")


def test_only_takes_names_with_spaces_in_quotes_or_as_in_folders(tmp_path):
    def methods(study, only):
        return {method for _, method, _ in plan_runs(load_study(study), Scale.paper, tmp_path, only)}

    assert methods("ablations", "method='shared heads' seed=42") == {"shared heads"}
    assert methods("lm-grid", "method='L=25 lr=0.001','L=50 lr=0.1'") == {"L=25 lr=0.001", "L=50 lr=0.1"}
    assert methods("lm-grid", "method=L_25_lr_0.001") == {"L=25 lr=0.001"}
    cells = plan_runs(load_study("fedisic"), Scale.paper, tmp_path, "row=fedisic_features_natural_lr_0.1")
    assert {row for row, _, _ in cells} == {"fedisic_features natural, lr 0.1"}
    for only in (
        "row='fedisic_features natural, lr 0.1'",
        "row='fedisic_features natural, lr 0.1,fedisic_features natural'",
    ):
        cells = plan_runs(load_study("fedisic"), Scale.paper, tmp_path, f"{only} method=celm seed=42")
        assert "fedisic_features natural, lr 0.1" in {row for row, _, _ in cells}
        assert len(cells) == 1 + only.count(",fed")


def test_only_does_not_guess_how_many_clients_the_data_has(tmp_path):
    with pytest.raises(CelmError, match="has no clients '5'"):
        plan_runs(load_study("fedisic"), Scale.paper, tmp_path, "clients=5")
    assert len(plan_runs(load_study("main"), Scale.paper, tmp_path, "clients=5 split=pls seed=42")) == 10
    assert len(plan_runs(load_study("clients-20"), Scale.smoke, tmp_path, "clients=20 method=celm")) == 6


def test_parts_that_are_run_one_after_another_come_to_one_table(tmp_path):
    def run(only):
        arguments = ["study", "iid", "--scale=smoke", f"--out={tmp_path}", "--workers=1", f"--only={only}"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        return json.loads((tmp_path / "table.json").read_text())["cells"]

    first = run("dataset=fashion_mnist method=fedavg")
    assert [(cell["row"], cell["column"]) for cell in first] == [("fashion_mnist iid", "fedavg")]
    second = run("dataset=fashion_mnist method=celm")
    assert [cell["column"] for cell in second] == ["fedavg", "celm"]
    assert second[0] | {"place": 0} == first[0]
    # What is there but of other settings is not this study's.
    place = tmp_path / "cells" / "fashion_mnist_iid-fedavg-seed42" / "settings.toml"
    place.write_text(place.read_text().replace("rounds = 3", "rounds = 4"))
    assert [cell["column"] for cell in run("dataset=fashion_mnist method=celm")] == ["celm"]


def test_a_damaged_run_fails_alone_and_the_rest_of_the_table_is_made(tmp_path):
    arguments = ["study", "iid", "--scale=smoke", f"--out={tmp_path}", "--workers=1", "--format=json"]
    arguments.append("--only=dataset=fashion_mnist method=fedavg,shapfed,celm")
    assert CliRunner().invoke(app, arguments).exit_code == 0
    cells = tmp_path / "cells"
    (cells / "fashion_mnist_iid-fedavg-seed42" / "rounds.jsonl").write_text("{}\nnot JSON\n")
    (cells / "fashion_mnist_iid-shapfed-seed42" / "settings.toml").write_text("[run")
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "2 of 3 runs failed" in again.stderr
    found = json.loads((tmp_path / "table.json").read_text())["cells"]
    assert {cell["column"]: cell["count"] for cell in found} == {"fedavg": 0, "shapfed": 0, "celm": 1}
    errors = json.loads((tmp_path / "errors.json").read_text())
    assert "line 2 is not JSON" in errors["fashion_mnist iid-fedavg-42"]
    assert "settings.toml" in errors["fashion_mnist iid-shapfed-42"]
    # Also where another part is asked for, and whatever else is wrong with a record.
    (cells / "fashion_mnist_iid-celm-seed42" / "result.json").write_text("{}")
    arguments[-1] = "--only=dataset=cifar10 method=fedavg"
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len(json.loads((tmp_path / "errors.json").read_text())) == 3


@pytest.mark.parametrize("number", ["x", None, [1], -1])
def test_a_round_that_is_no_number_counts_as_none_done(tmp_path, number):
    cell = next(iter(plan_runs(load_study("iid"), Scale.smoke, tmp_path).values()))
    cell.folder.mkdir(parents=True)
    (cell.folder / "rounds.jsonl").write_text(json.dumps({"round": number}) + "\n")
    assert count_rounds_done(cell) == 0


def test_errors_of_earlier_parts_stay_until_their_runs_are_done(tmp_path):
    path = tmp_path / "errors.json"
    save_errors(path, {"a": "out of memory", "b": "no data"}, {"a", "b", "c"})
    save_errors(path, {"d": "no space"}, {"b", "d"})
    assert json.loads(path.read_text()) == {"a": "out of memory", "d": "no space"}
    for damaged in ("damaged", "[1]", "null"):
        path.write_text(damaged)
        save_errors(path, {}, set())
        assert json.loads(path.read_text()) == {}


def test_a_game_of_which_coalitions_are_missing_is_left_out(tmp_path):
    study = load_study("estimators")
    cells = plan_runs(study, Scale.smoke, tmp_path)
    whole, part = ("digits pls", "digits sls")
    for key, cell in cells.items():
        if key[0] == whole or (key[0] == part and key[1] != "celm"):
            cell.folder.mkdir(parents=True)
            (cell.folder / "settings.toml").write_text(cell.experiment.to_toml())
            (cell.folder / "result.json").write_text("{}")
    found = merge_existing(study, cells, {})
    assert {row for row, _, _ in found} == {whole}


@pytest.mark.parametrize(
    ("methods", "rows"),
    [
        (
            "[methods.fedavg]",
            ['split = { name = "pls", clients = 5 }', 'split = { name = "pls", clients = 8 }'],
        ),
        ("[methods.'lr 0.1']\nmethod = 'celm'\n[methods.'lr>0.1']\nmethod = 'celm'", ["split = 'pls'"]),
    ],
)
def test_labels_that_would_share_a_folder_are_refused(tmp_path, methods, rows):
    tables = "\n".join(f"[[rows]]\ndataset = 'digits'\n{row}" for row in rows)
    (tmp_path / "own.toml").write_text(f"title = 'own'\n{methods}\n{tables}\n")
    with pytest.raises(CelmError, match="would share a folder"):
        load_study(str(tmp_path / "own.toml"))


def test_no_two_runs_are_given_one_folder(tmp_path):
    cells = list(plan_runs(load_study("iid"), Scale.smoke, tmp_path, "method=celm").values())
    with pytest.raises(CelmError, match="2 runs would share the folder"):
        run_all([cells[0], replace(cells[0], method="other")], lambda: ProcessPool(1))


def test_quick_is_never_longer_than_the_paper(tmp_path):
    tables = {"dataset": {"name": "fashion_mnist"}, "split": {"name": "pls"}, "run": {"rounds": 5}}
    assert apply_scale(tables, Scale.quick)["run"]["rounds"] == 5


def test_the_scale_holds_for_what_methods_set_too(tmp_path):
    own = {
        "fedavg": {},
        "short": {"method": "fedavg", "run": {"rounds": 7}},
        "long": {"method": "fedavg", "run": {"rounds": 500}, "train": {"decay_at": [250], "batch": 8}},
        "much": {"method": "fedavg", "dataset": {"limit": 5000}},
        "little": {"method": "fedavg", "dataset": {"limit": 50}},
        "probed": {"method": "celm", "probe": {"steps": 400}},
    }
    row = {"dataset": "digits", "split": "pls", "run": {"rounds": 100}}
    study = StudySpec.model_validate({"name": "own", "title": "x", "methods": own, "rows": [row]})

    def at(scale):
        return {key[1]: cell.experiment for key, cell in plan_runs(study, scale, tmp_path).items()}

    smoke, quick, paper = at(Scale.smoke), at(Scale.quick), at(Scale.paper)
    assert {each.run.rounds for each in smoke.values()} == {3}
    assert {each.train.batch for each in smoke.values()} == {32}
    assert {each.dataset.limit for each in smoke.values()} == {None}
    assert (smoke["fedavg"].probe.steps, smoke["probed"].probe.steps) == (5, 10)
    assert [quick[name].run.rounds for name in ("fedavg", "short", "long")] == [20, 7, 100]
    assert quick["long"].train.decay_at == (50,)
    assert [quick[name].dataset.limit for name in ("fedavg", "much", "little")] == [1000, 1000, 50]
    assert [paper[name].run.rounds for name in ("fedavg", "short", "long")] == [100, 7, 500]


def test_unknown_study_and_scale_are_refused(tmp_path):
    for arguments, message in (
        (["study", "mian"], "did you mean 'main'?"),
        (["study", "main", "--scale=huge"], "--scale"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert message in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke_scale_fills_the_whole_table(name, tmp_path):
    arguments = ["study", name, "--scale=smoke", f"--out={tmp_path}", "--workers=1", "--format=json"]
    if name == "lm-grid":
        arguments.append("--only=dataset=fashion_mnist split=pls")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["cells"]
    assert not found["errors"]
    assert all(cell["mean"] is not None for cell in found["cells"])
    assert all(math.isfinite(cell["mean"]) for cell in found["cells"])
    assert {path.name for path in tmp_path.iterdir()} >= {
        "table.md",
        "table.tex",
        "table.csv",
        "table.json",
        "cells",
        "study.json",
    }
    page = build_report(tmp_path)
    assert page.count('<td class="folder">') == len(list(tmp_path.rglob("result.json")))
    assert ("Steps and rate of the probe" in page) == (name == "lm-grid")
    splits = {
        cell.experiment.split.name for cell in plan_runs(load_study(name), Scale.smoke, tmp_path).values()
    }
    assert ("Free-riders flagged" in page) == ("free_rider" in splits)
    assert ("True and estimated distribution" in page) == (name == "fidelity")
    assert ("Measured by a clock" in page) == (name in ("ablations", "estimators"))


def test_quick_lets_rates_decay_at_the_same_part_of_the_run(tmp_path):
    cells = plan_runs(load_study("iid"), Scale.quick, tmp_path, "method=celm")
    found = {cell.experiment.dataset.name: cell.experiment for cell in cells.values()}
    assert (found["fashion_mnist"].run.rounds, found["fashion_mnist"].train.decay_at) == (20, (10,))
    assert (found["cifar10"].run.rounds, found["cifar10"].train.decay_at) == (40, (10,))


def test_quick_evaluates_a_few_times_and_not_more_often_than_declared(tmp_path):
    def every(run):
        tables = {"dataset": {"name": "cifar10"}, "split": {"name": "pls"}, "run": run}
        return apply_scale(tables, Scale.quick)["run"]["evaluate_every"]

    assert [every(run) for run in ({}, {"rounds": 5}, {"evaluate_every": 20})] == [5, 1, 20]


@pytest.mark.parametrize("dataset", ["cifar10", "fashion_mnist", "emnist47"])
def test_label_skew_keeps_its_shape_at_quick(dataset):
    """What the authors take of a label of the whole dataset is more than a part of it has."""
    tables = {"dataset": {"name": dataset}, "split": {"name": "pls"}}
    choice = resolve_defaults(Experiment.parse(apply_scale(tables, Scale.quick))).experiment.split
    classes = 47 if dataset == "emnist47" else 10
    labels = np.repeat(np.arange(classes), QUICK_LIMIT)
    dealing = splits.build(choice.name, choice.options).partition(
        labels, classes, 5, np.random.RandomState(42)
    )
    held = [np.bincount(labels[part], minlength=classes) for part in dealing.clients.values()]
    fewest = classes // 5 + (classes % 5 > 0)
    assert np.count_nonzero(held[0]) == fewest
    assert len({counts.sum() for counts in held}) == 1
    assert held[0].sum() > 0.9 * fewest * QUICK_LIMIT / 2


def test_dry_run_says_how_much_there_is_to_do(tmp_path):
    result = CliRunner().invoke(
        app, ["study", "iid", "--scale=smoke", "--dry-run", f"--out={tmp_path}", "--format=json"]
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["runs"], found["done"]) == (10, 0)
    assert found["hours"] > 0
    assert not list(tmp_path.iterdir())


VARIED = """
title = "Varied"
seeds = [1]
[methods]
fedavg = {}
"some" = { method = "fedavg", run = { participation = 0.5 } }
"held out" = { method = "fedavg", run = { validation = 0.2 } }
"alone" = { method = "fedavg", run = { clients = ["client-0"] } }
"twice" = { method = "fedavg", train = { epochs = 2 } }
"prox" = { method = "fedprox" }
[[rows]]
dataset = "digits"
split = "pls"
[[rows]]
name = "three"
dataset = "digits"
split = { name = "dirichlet", alpha = 0.1, clients = 3 }
"""


def test_dry_run_counts_the_samples_of_every_run(tmp_path, monkeypatch):
    (tmp_path / "varied.toml").write_text(VARIED)
    cells = plan_runs(load_study(str(tmp_path / "varied.toml")), Scale.paper, tmp_path / "out")
    timed = []
    monkeypatch.setattr(cost_estimate, "seconds_per_sample", lambda bench: timed.append(bench) or 1.0)
    for cell in cells.values():
        settings = cell.experiment
        holdings = build_federation(resolve_defaults(settings)).trainer.client_data.values()
        samples = sum(len(holding.rows) for holding in holdings)
        expected = samples * settings.run.rounds * settings.run.participation * settings.train.epochs
        assert cost_estimate.estimate_seconds([cell]) == (pytest.approx(expected), {})
    timed.clear()
    whole, _ = cost_estimate.estimate_seconds(list(cells.values()))
    assert whole == pytest.approx(sum(cost_estimate.estimate_seconds([cell])[0] for cell in cells.values()))
    assert len(timed) == 3 + len(cells)


IMPOSSIBLE = """
title = "Too many"
seeds = [1]
[methods]
fedavg = {}
[[rows]]
name = "few"
dataset = "digits"
split = "pls"
[[rows]]
name = "many"
dataset = "digits"
split = { name = "iid", clients = 5000 }
[[rows]]
name = "nowhere"
dataset = { name = "folder", path = "not-there" }
split = "iid"
"""


def test_dry_run_says_what_cannot_be_run_and_counts_the_rest(tmp_path):
    (tmp_path / "own.toml").write_text(IMPOSSIBLE)
    arguments = ["study", str(tmp_path / "own.toml"), "--dry-run", f"--out={tmp_path / 'out'}"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 2
    assert "Too many: 3 runs, 0 of them done" in told.stdout
    assert re.search(r"about [\d.]+ s on one core", told.stdout)
    assert told.stderr.startswith("error: 2 of 3 runs cannot be run, the first many, fedavg, seed 1: ")
    assert "5000 clients" in told.stderr
    found = json.loads(CliRunner().invoke(app, [*arguments, "--format=json"]).stdout)
    assert list(found["errors"]) == ["many, fedavg, seed 1", "nowhere, fedavg, seed 1"]
    assert found["hours"] > 0


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path):
    (tmp_path / "file").write_text("")
    told = CliRunner().invoke(app, ["study", "iid", "--scale=smoke", f"--out={tmp_path / 'file' / 'x'}"])
    assert told.exit_code == 2
    assert len(told.stderr.splitlines()) == 1
    assert told.stderr.startswith("error: cannot create")


def test_dry_run_goes_on_where_the_run_does(tmp_path):
    arguments = ["study", "iid", "--scale=smoke", "--dry-run", f"--out={tmp_path}", "--format=json"]
    cell = next(iter(plan_runs(load_study("iid"), Scale.smoke, tmp_path).values()))
    cell.folder.mkdir(parents=True)
    (cell.folder / "settings.toml").write_text(cell.experiment.to_toml())
    (cell.folder / "result.json").write_text("{")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["runs"], found["done"], found["damaged"]) == (10, 0, 1)


OWN = """
title = "Mine"
seeds = [1]
[methods]
"long" = { method = "celm", rule = { warmup_fraction = 0.5 } }
[[rows]]
dataset = "digits"
split = { name = "pls", clients = 3 }
run = { rounds = 2 }
"""


def test_a_table_may_show_how_unequal_weights_are(tmp_path):
    (tmp_path / "mine.toml").write_text(
        OWN.replace("[methods]", "metrics = ['gini']\n[methods]\nfedavg = {}")
    )
    arguments = ["study", str(tmp_path / "mine.toml"), "--scale=smoke", "--workers=1", "--format=json"]
    done = CliRunner().invoke(app, [*arguments, f"--out={tmp_path / 'out'}"])
    assert done.exit_code == 0, done.output
    fedavg, long = json.loads(done.stdout)["cells"]
    assert fedavg["mean"] == pytest.approx(0, abs=1e-9)
    (place,) = (tmp_path / "out" / "cells").glob("*long*")
    weights = list(json.loads((place / "result.json").read_text())["weights"].values())
    apart = sum(abs(a - b) for a in weights for b in weights)
    assert long["mean"] == pytest.approx(apart / (2 * len(weights) * sum(weights)))
    assert not long["ranked"]


def test_a_study_of_ones_own_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(OWN)
    found = CliRunner().invoke(
        app, ["study", "mine.toml", "--scale", "smoke", "--workers", "1", "--format", "json"]
    )
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["study"] == "mine"
    assert answer["folder"] == str(tmp_path / "studies" / "mine-smoke")
    assert answer["errors"] == {}


WHOLE = {
    "title": "title = 'x'",
    "methods": "[methods]\nfedavg = {}",
    "rows": "[[rows]]\ndataset = 'digits'\nsplit = 'pls'",
}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"title": "title = "}, "is not TOML"),
        ({"title": "title = 'x'\nsedes = [1]"}, "sedes"),
        ({"title": "title = 'x'\nseeds = []"}, "seeds: List should have at least 1 item"),
        ({"title": "title = 'x'\nseeds = ['1']"}, "seeds.0: Input should be a valid integer"),
        ({"title": "title = 'x'\nseeds = [1, 1]"}, "seeds must be without duplicates"),
        ({"title": "title = 'x'\nrows = []", "rows": ""}, "rows: List should have at least 1 item"),
        ({"methods": "[methods]"}, "methods: Dictionary should have at least 1 item"),
        ({"methods": "[methods]\nnone = {}"}, "unknown method 'none'"),
        ({"methods": "[methods]\ncelm = 5"}, "methods.celm: "),
        ({"methods": "[methods]\ncelm = { warmup = 5 }"}, "methods.celm: 'warmup' is not a table"),
        (
            {"methods": "[methods]\ncelm = { run = 5 }"},
            "methods.celm.run: Input should be a valid dictionary",
        ),
        (
            {"methods": "[methods]\nfoo = { method = 5 }"},
            "methods.foo.method: Input should be a valid string",
        ),
        (
            {"rows": "[[rows]]\ndataset = 'digits'\nsplit = 'pls'\nrounds = 10"},
            "rows.0: 'rounds' is not a table",
        ),
        ({"rows": "[[rows]]\ndataset = { limit = 3 }\nsplit = 'pls'"}, "rows.0.dataset.name: Field required"),
        (
            {"rows": "[[rows]]\ndataset = 'digits'\nsplit = 'pls'\nrule = { warmup = 5 }"},
            "rows.0: 'rule' belongs to a method",
        ),
        (
            {"rows": "[[rows]]\ndataset = 'digits'\nsplit = { clients = 3 }"},
            "rows.0.split.name: Field required",
        ),
        (
            {
                "title": "title = 'x'\nground_truth = true",
                "rows": "[[rows]]\ndataset = 'fedisic'\nsplit = 'natural'",
            },
            "row 'fedisic natural' has no number of clients",
        ),
        (
            {"rows": "[[rows]]\ndataset = 'digits'\nsplit = { name = 'pls', clients = 'x' }"},
            "rows.0.split.clients: Input should be a valid integer",
        ),
        (
            {"rows": "[[rows]]\ndataset = 'digits'\nsplit = { name = 'dirichlet', alpha = 'x' }"},
            "rows.0.split.alpha: Input should be a valid number",
        ),
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path, changed, complaint):
    (tmp_path / "bad.toml").write_text("\n".join({**WHOLE, **changed}.values()))
    result = CliRunner().invoke(app, ["study", str(tmp_path / "bad.toml"), "--dry-run"])
    assert result.exit_code == 2, result.exception
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr


def test_words_of_a_file_are_no_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    about = 'about = "See [1], [/x]\\u0007 and 5 %"'
    own = OWN.replace("[methods]", f"{about}\n[methods]").replace('"long"', '"[/b] long"')
    (tmp_path / "mine[i].toml").write_text(own.replace("Mine", "[/u] Mine"))
    arguments = ["study", "mine[i].toml", "--scale=smoke", "--workers=1"]
    for more in ((), ("--dry-run",)):
        done = CliRunner().invoke(app, [*arguments, *more])
        assert done.exit_code == 0, done.exception
        assert "[/u] Mine" in done.stdout
        assert ("See [1], [/x]\\x07 and 5 %" in done.stdout) == (not more)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "bad.toml").write_bytes("title = 'Größe'".encode("latin-1"))
    with pytest.raises(CelmError, match="it is not text"):
        load_study(str(tmp_path / "bad.toml"))


def test_a_name_may_stand_for_a_table_in_rows_and_methods(tmp_path):
    (tmp_path / "own.toml").write_text(
        "title = 'x'\nseeds = [1]\n[methods]\ncelm = { probe = 'fast' }\n"
        "[[rows]]\ndataset = 'digits'\nsplit = 'pls'\nmodel = 'mlp'"
    )
    (cell,) = plan_runs(load_study(str(tmp_path / "own.toml")), Scale.paper, tmp_path).values()
    assert (cell.experiment.model.name, cell.experiment.probe.steps) == ("mlp", 50)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(CelmError, match=r"absent\.toml"):
        load_study(str(tmp_path / "absent.toml"))
