"""Pages of runs that are not the usual five clients under CELM say what is true of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import celm
from celm.base.errors import CelmError
from celm.report.html import report
from report.pages import Page, safe


def page_of(folder: Path, **settings: Any) -> Page:
    tables = {
        "dataset": {"name": "digits", "limit": 30},
        "model": {"name": "mlp", "widths": [16]},
        "probe": {"steps": 5},
        "train": {"batch": 16},
        **settings,
    }
    tables["run"] = {"rounds": 3, **tables.get("run", {})}
    celm.run(celm.Experiment.parse(tables), out=folder)
    page = Page(report(folder))
    safe(page)
    return page


def alternatives(page: Page) -> list[str]:
    return [value or "" for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]


def test_clients_with_models_of_their_own(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", rule="standalone")
    assert "Mean over the clients' own models, on the test data." in page.text
    assert "Mean over the clients' own models, last round" in page.text
    assert "lobal model" not in page.text
    own = json.loads((tmp_path / "run" / "result.json").read_text())["client_accuracy"]
    for client, accuracy in own.items():
        assert (
            f"{client}: 20.0 % of the weight; its own model's accuracy is {100 * accuracy:.1f} %" in page.text
        )


def test_a_common_model_is_called_so(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", rule="fedavg")
    assert "Of the global model, on the test data." in page.text
    assert "its own model" not in page.text
    assert "The same in every round." in page.text
    assert "rozen" not in page.text


def test_evidence_of_a_rule_that_only_watched_is_shown(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", rule="fedavg", observe=["shapfed", "celm"])
    assert "by celm, which only watched." in page.text
    assert "as celm saw it: the rule fedavg, which the weights are of, has none" in page.text
    assert "20.0 % of the weight; evidence for" in page.text
    assert any(
        label.startswith("Heatmap of evidence, 5 clients by 10 classes.") for label in alternatives(page)
    )


def test_damaged_evidence_of_a_watcher_is_named(tmp_path: Path) -> None:
    page_of(tmp_path / "run", rule="fedavg", observe=["celm"])
    path = tmp_path / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if evidence := line["observed"]["celm"]["evidence"]:
            evidence["client-0"] = [1.0]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(CelmError, match=r"rounds\.jsonl is damaged: evidence does not have a number"):
        report(tmp_path / "run")


@pytest.mark.parametrize(
    ("rule", "meaning"),
    [
        ({}, "shows of a class beyond the global model;"),
        ({"debias": False}, "Evidence is how high probing drives a client's answer for a class;"),
        ({"evidence": "calibrated"}, "in units of how much it varies on noise;"),
    ],
)
def test_evidence_is_what_the_rule_makes_it(tmp_path: Path, rule: dict[str, Any], meaning: str) -> None:
    page = page_of(tmp_path / "run", rule={"name": "celm", **rule})
    assert meaning in page.text
    assert page.text.count("Evidence is ") == 1


def test_clients_that_never_came(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", split={"name": "iid", "clients": 10}, run={"participation": 0.2})
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    came = {client for record in records for client in record["clients"]}
    probed = {client for record in records for client in record["evidence"] or {}}
    absent = [f"client-{i}" for i in range(10) if f"client-{i}" not in came]
    assert len(absent) >= 4
    for client in absent:
        assert re.search(rf"{client}: [\d.]+ % of the weight; took part in no round", page.text)
    assert page.text.count("took part in no round") == len(absent)
    assert "what the clients that were probed hold is estimated" in page.text
    heat = [label for label in alternatives(page) if label.startswith("Heatmap of evidence")]
    assert all(f"{len(probed)} client" in label for label in heat)
    assert any("Bubble plot of samples held, 10 clients by 10 classes." in a for a in alternatives(page))


def test_rounds_are_those_in_which_an_update_counted(tmp_path: Path) -> None:
    page_of(tmp_path / "run", split={"name": "iid", "clients": 3})
    path = tmp_path / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["excluded"] = {"client-1": "is late"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = report(tmp_path / "run")
    rows = re.findall(r'<th scope="row"><bdi[^>]*>(client-\d)</bdi></th>.*?</tr>', text, re.S)
    assert rows[:3] == ["client-0", "client-1", "client-2"]
    cells = re.search(r">client-1</bdi></th>(.*?)</tr>", text, re.S)
    assert cells is not None
    assert re.findall(r'data-value="(\d+)">', cells[1])[-2:] == ["2", "1"]  # rounds, left out


def test_one_client_and_one_round(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", split={"name": "iid", "clients": 1}, run={"rounds": 1})
    assert "1 client trained mlp for 1 round with celm" in page.text
    assert "sole holder of class" not in page.text
    for words in ("1 clients", "1 rounds"):
        assert words not in " ".join([page.text, *alternatives(page)])
