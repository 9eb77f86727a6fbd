"""Reports of runs and studies: their claims, escaping of names, no network, and refusal of other folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.report.build import build_report, write_report
from support.pages import HOSTILE, Page, safe

CLASSES = ["</td><script>", "a & b", "\u202eowl\n", "'\"`"]


@pytest.fixture
def page(tmp_path: Path, handmade: Callable[..., Path]) -> Page:
    return Page(build_report(handmade(tmp_path / "run")))


def test_the_summary_has_one_line_per_client(page: Page) -> None:
    for line in (
        "client-1: 50.0 % of the weight; evidence for 3 of 4 classes; "
        "score 30.0 % to 40.0 % and rank 2 over 2 rounds client-0:",
        "client-0: 40.0 % of the weight; evidence for 2 of 4 classes; score 50.0 % and rank 1 over 2 rounds client-2:",
        "client-2: 10.0 % of the weight; no evidence for any class; "
        "score 10.0 % to 20.0 % and rank 3 over 2 rounds; excluded in 2 rounds",
        "Too few rounds were probed to test which client holds which class",
    ):
        assert line in page.text
    assert "sole evidence for class" not in page.text


def test_with_two_rounds_after_the_first_holdings_are_tested(
    tmp_path: Path, handmade: Callable[..., Path]
) -> None:
    """Client 1 has 0.25 for yak, 8 % of its best class: below the floor."""
    page = Page(build_report(handmade(tmp_path / "run", probed=3)))
    for line in (
        "client-0: 40.0 % of the weight; surely holds 2 of 4 classes; sole evidence for class cat; score",
        "client-1: 50.0 % of the weight; surely holds 2 of 4 classes, possibly 1 more; sole evidence for class owl; "
        "score",
        "client-2: 10.0 % of the weight; no evidence for any class; score",
        "above 10% of that of its best class",
    ):
        assert line in page.text, line
    assert "Too few rounds" not in page.text
    safe(page)


def test_the_page_states_experiment_and_accuracy(page: Page) -> None:
    for words in (
        "Client contributions: digits, pure label skew",
        "3 clients trained MLP for 3 rounds with celm, seed 42",
        "Accuracy 75.00 %",
        "Balanced accuracy 50.00 %",
        "Rare-class accuracy 12.50 %",
        "1 min 15 s",
        "celm run settings.toml",
        "celm 0.1.0",
        "has a value that is not finite",
    ):
        assert words in page.text, words


def test_observers_weights_are_a_column(page: Page) -> None:
    assert "by shapfed" in page.text
    assert "30.0 %" in page.text


def test_the_truth_is_separate_and_labelled(page: Page) -> None:
    before, after = page.text.split("known only in simulation")
    assert "Free-riders: client-2" in after
    assert "Free-riders" not in before
    assert "Samples as numbers" in after


def test_figures_have_text_alternatives(page: Page) -> None:
    pictures = [value for tag, name, value in page.attributes if tag == "svg" and name == "role"]
    labels = [v for tag, name, v in page.attributes if tag == "svg" and name == "aria-label"]
    assert len(pictures) == len(labels) == 9
    assert "Heatmap of evidence, 3 clients by 4 classes. Highest: client-1 for class owl, 3.00." in labels
    assert any(
        "Evidence for 5 of 6 client-class pairs with samples, and for 0 without" in (v or "") for v in labels
    )


def test_a_page_loads_and_allows_nothing_but_itself(page: Page) -> None:
    safe(page)


def test_hostile_names_stay_text(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    folder = handmade(
        tmp_path / "run", names=HOSTILE, classes=CLASSES, free_riders=HOSTILE, dataset=HOSTILE[0]
    )
    result = json.loads((folder / "result.json").read_text())
    result["observed"] = {HOSTILE[0]: dict.fromkeys(HOSTILE, 0.5)}
    (folder / "result.json").write_text(json.dumps(result))
    text = build_report(folder)
    page = Page(text)
    safe(page)
    assert "<script>alert(1)</script>: 40.0 % of the weight" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert "x" * 100 not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


def test_a_rule_without_evidence_has_weights_only(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    page = Page(
        build_report(handmade(tmp_path / "run", evidence=None, observed={}, rare_class_accuracy=None))
    )
    assert "client-0: 40.0 % of the weight" in page.text
    assert "Evidence by class" not in page.text
    assert "Rare-class" not in page.text
    safe(page)


def test_clients_without_a_probe_result_are_named(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    evidence = {"client-0": [1.0, 0.0, 0.0, 0.0]}
    page = Page(build_report(handmade(tmp_path / "run", evidence=evidence)))
    assert "client-1: 50.0 % of the weight; no probe result" in page.text


def test_equal_runs_give_equal_pages(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    folder = handmade(tmp_path / "run")
    assert build_report(folder) == build_report(folder)


def test_a_study_shows_ours_the_papers_and_the_difference(study: Path) -> None:
    page = Page(build_report(study))
    safe(page)
    assert "75.00 ± 1.00 paper 80.00 ± 2.00 difference −5.00" in page.text
    assert "4 finished runs" in page.text
    span_classes = [v for tag, name, v in page.attributes if (tag, name) == ("span", "class")]
    assert (
        span_classes.count("best") == span_classes.count("second") == 2
    )  # one cell, and one in the explanation, each
    labels = [v or "" for tag, name, v in page.attributes if tag == "svg" and name == "aria-label"]
    assert any("At the end: fedavg 60.0 %; celm 75.0 %." in label for label in labels)


def test_a_study_links_to_the_reports_of_its_runs(study: Path, tmp_path: Path) -> None:
    write_report(study / "celm-seed42")
    (study / "fedavg-seed43" / "result.json").unlink()
    write_report(study, tmp_path / "elsewhere.html")
    page = Page((tmp_path / "elsewhere.html").read_text())
    links = [v for tag, name, v in page.attributes if (tag, name) == ("a", "href") and v and v[0] != "#"]
    assert links == ["study/celm-seed42/report.html"]
    assert "3 finished runs, 1 not finished" in page.text


def test_settings_that_vary_within_a_method_name_its_lines(study: Path) -> None:
    settings = study / "celm-seed43" / "settings.toml"
    settings.write_text(settings.read_text().replace("steps = 200", "steps = 50"))
    page = Page(build_report(study))
    assert "celm, probe.steps=50" in page.text
    assert "celm, probe.steps=200" in page.text


def test_splits_that_differ_in_a_setting_have_separate_rows(study: Path) -> None:
    settings = study / "celm-seed43" / "settings.toml"
    settings.write_text(settings.read_text().replace("clients = 5", "clients = 7"))
    page = Page(build_report(study))
    assert "digits, pure label skew, split.clients=5" in page.text
    assert "digits, pure label skew, split.clients=7" in page.text
    safe(page)


def test_a_full_grid_of_probe_settings_is_a_heatmap(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    for steps in (50, 200):
        for rate in ("0.01", "0.1"):
            folder = handmade(tmp_path / f"{steps}-{rate}", accuracy=steps / 1000 + float(rate))
            text = (folder / "settings.toml").read_text()
            text = text.replace("steps = 200", f"steps = {steps}").replace("lr = 0.01", f"lr = {rate}")
            (folder / "settings.toml").write_text(text)
    (tmp_path / "table.json").write_text('{"title": "grid", "cells": []}')
    page = Page(build_report(tmp_path))
    assert "Steps and rate of the probe" in page.text
    assert "Accuracy over the rounds" not in page.text


def test_ranks_and_units_are_those_of_the_table(study: Path) -> None:
    figures = (("worst", 0.9, 0), ("best", 0.1, 1), ("middle", 0.5, 2))
    cells: list[dict[str, Any]] = [
        {"row": "r", "column": c, "mean": m, "place": p, "percent": False, "low": True} for c, m, p in figures
    ]
    cells.append({"row": "failed", "column": "best", "mean": None, "percent": None, "low": None})
    (study / "table.json").write_text(json.dumps({"title": "d", "compete": "columns", "cells": cells}))
    text = build_report(study)
    assert re.findall('class="(|best|second)">(0[.][0-9]+)<', text) == [
        ("", "0.900"),
        ("best", "0.100"),
        ("second", "0.500"),
    ]
    assert "In the units of each metric. Lower is better." in text  # so no line has a note
    assert "↓" not in Page(text).text.split("Last round")[0]


def test_a_value_over_too_few_seeds_is_marked(study: Path) -> None:
    table = json.loads((study / "table.json").read_text())
    table["cells"][0] |= {"count": 3, "meant": 3}
    table["cells"][1] |= {"count": 2, "meant": 3}
    (study / "table.json").write_text(json.dumps(table | {"over": "federations"}))
    assert "2 of 3 federations" in build_report(study)
    assert "standard deviation over federations" in build_report(study)
    assert "3 of 3" not in build_report(study)


def test_hostile_tables_stay_text(study: Path) -> None:
    table = json.loads((study / "table.json").read_text())
    table["title"] = HOSTILE[0]
    table["cells"] += [{"row": HOSTILE[1], "column": HOSTILE[2], "mean": 0.5}]
    (study / "table.json").write_text(json.dumps(table))
    safe(Page(build_report(study)))


def test_the_report_is_written_into_the_folder_or_to_the_given_path(
    tmp_path: Path, handmade: Callable[..., Path]
) -> None:
    folder = handmade(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert write_report(folder, tmp_path / "r.html").read_text() == (folder / "report.html").read_text()
    assert not list(tmp_path.glob(".*"))


def damage(folder: Path, **changes: object) -> None:
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, **changes}))


def test_other_folders_and_files_are_refused(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    with pytest.raises(CelmError, match="nothing: it is not a folder"):
        build_report(tmp_path / "nothing")
    with pytest.raises(CelmError, match=r"settings\.toml, table\.json or rounds\.jsonl"):
        build_report(tmp_path)
    (tmp_path / "stopped" / "cells").mkdir(parents=True)
    with pytest.raises(CelmError, match="no table yet"):
        build_report(tmp_path / "stopped")
    folder = handmade(tmp_path / "run")
    damage(folder, accuracy="high")
    with pytest.raises(CelmError, match=r"result\.json is damaged: accuracy"):
        build_report(folder)
    damage(folder, accuracy=0.5, per_class=[0.1])
    with pytest.raises(CelmError, match=r"result\.json is damaged"):
        build_report(folder)
    (folder / "result.json").unlink()
    with pytest.raises(CelmError, match="is not finished"):
        build_report(folder)
    (tmp_path / "a.html").mkdir()
    with pytest.raises(CelmError, match="it is a folder"):
        write_report(folder, tmp_path / "a.html")
    for wrong in (folder / "rounds.jsonl", tmp_path / "report.pdf"):
        with pytest.raises(CelmError, match="a report is an HTML file"):
            write_report(folder, wrong)
    (tmp_path / "audit").mkdir()
    for name in ("ledger.json", "report.html"):
        (tmp_path / "audit" / name).touch()
    with pytest.raises(CelmError, match=r"it is an audit, .*report\.html$"):
        build_report(tmp_path / "audit")
    (tmp_path / "table.json").write_text('{"title": 3}')
    with pytest.raises(CelmError, match=r"table\.json is damaged"):
        build_report(tmp_path)
