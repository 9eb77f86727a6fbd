"""The report of a study: its manifest, every run, failed and missing runs, and the figures of its kind."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from celm.base.errors import CelmError
from celm.report.bar_figures import method_accuracy_figure, method_weights_figure, per_class_figure
from celm.report.build import build_report
from celm.report.line_figures import accuracy_figure
from support.pages import HOSTILE, Page, safe

Handmade = Callable[..., Path]


def write_manifest(folder: Path, cells: dict[str, tuple[str, str, int]], **changes: Any) -> None:
    run_keys = {path: dict(zip(("row", "method", "seed"), cell, strict=True)) for path, cell in cells.items()}
    manifest = {
        "command": ["celm", "study", "my study.toml", "--scale", "smoke"],
        "title": "Mine",
        "about": "Levels do not compare.",
        "study": "my study.toml",
        "scale": "smoke",
        "seeds": [42, 43],
        "only": ["split=pls method=celm", "seed=43"],
        "version": "9.8.7",
        "cells": run_keys,
    }
    (folder / "study.json").write_text(json.dumps({**manifest, **changes}))


def all_cells() -> dict[str, tuple[str, str, int]]:
    return {f"{m}-seed{s}": ("digits pls", m, s) for m in ("fedavg", "celm") for s in (42, 43)}


def labels(page: Page) -> list[str]:
    return [v or "" for tag, name, v in page.attributes if tag == "svg" and name == "aria-label"]


def test_the_page_has_the_description_and_the_commands(study: Path) -> None:
    write_manifest(study, all_cells())
    page = Page(build_report(study))
    safe(page)
    for words in (
        "Levels do not compare.",
        "celm study 'my study.toml' --scale smoke --only 'split=pls method=celm'",
        "celm study 'my study.toml' --scale smoke --only seed=43",
        "seeds 42, 43",
        "celm 9.8.7",
        "4 finished runs of 4.",
    ):
        assert words in page.text, words


def test_settings_are_listed_by_row_and_by_method(study: Path) -> None:
    for seed in (42, 43):
        path = study / f"celm-seed{seed}" / "settings.toml"
        path.write_text(path.read_text().replace("clients = 5", "clients = 7"))
    cells = {path: (f"{method} row", method, seed) for path, (_, method, seed) in all_cells().items()}
    cells["fedavg-seed42"] = ("fedavg row", "other", 42)
    text = (study / "fedavg-seed42" / "settings.toml").read_text()
    (study / "fedavg-seed42" / "settings.toml").write_text(text.replace("steps = 200", "steps = 50"))
    write_manifest(study, cells)
    page = Page(build_report(study))
    rows, methods = re.split("Settings by method", page.text.split("Settings by row")[1])
    methods, common = methods.split("Settings of all runs")
    assert "celm row rule.name=celm, split.clients=7" in rows
    assert "fedavg row rule.name=fedavg, split.clients=5" in rows
    assert "fedavg probe.steps=200" in methods
    assert "other probe.steps=50" in methods
    assert "l2 = 0.001" in common
    assert "steps" not in common
    assert "seed" not in common


def test_runs_with_equal_settings_are_all_listed(tmp_path: Path, handmade: Handmade) -> None:
    names = ("short", "long")
    for name in names:
        for seed in (42, 43):
            handmade(tmp_path / f"cells/r-{name}-seed{seed}", seed=seed)
    (tmp_path / "table.json").write_text('{"title": "t", "cells": []}')

    def folders() -> list[str]:
        return sorted(re.findall('<td class="folder">([^<]*)<', build_report(tmp_path)))

    everything = sorted(f"cells/r-{name}-seed{seed}" for name in names for seed in (42, 43))
    assert folders() == everything  # without study.json they are one method, of four runs
    write_manifest(tmp_path, {f"cells/r-{n}-seed{s}": ("r", n, s) for n in names for s in (42, 43)})
    assert folders() == everything
    assert {"short", "long"} <= set(
        re.findall('<th scope="row"><bdi class="no-wrap">([^<]*)</bdi></th><td', build_report(tmp_path))
    )


def test_coalitions_are_listed_but_not_drawn(study: Path, handmade: Handmade) -> None:
    path = handmade(study / "cells/some", accuracy=0.125)
    settings = (path / "settings.toml").read_text()
    (path / "settings.toml").write_text(settings.replace("[run]", '[run]\nclients = ["client-0"]'))
    page = Page(build_report(study))
    assert "5 finished runs" in page.text
    assert "12.50 %" in page.text
    assert not any("coalition" in label for label in labels(page))


def test_failed_runs_have_their_error(study: Path) -> None:
    write_manifest(
        study, {**all_cells(), "cells/x": ("digits sls", "moon", 7), "cells/y": ("digits sls", "celm", 7)}
    )
    (study / "celm-seed43" / "result.json").unlink()
    (study / "fedavg-seed43" / "result.json").write_text("{")
    errors = {
        "digits sls-moon-7": "no space\nleft",
        "digits pls-celm-43": "killed",
        "digits pls-celm-42": "old",
    }
    (study / "errors.json").write_text(json.dumps(errors))
    page = Page(build_report(study))
    safe(page)
    failed, rest = page.text.split("run error")[1].split("Not run")
    assert "digits step label skew, moon, seed 7 no space left" in failed
    assert "digits pure label skew, celm, seed 43 killed" in failed
    assert re.search(r"digits pure label skew, fedavg, seed 43 .*result\.json is damaged", failed)
    assert "celm, seed 42" not in failed  # it is done by now
    assert "2 finished runs, 3 failed of 6" in page.text
    assert "digits step label skew celm (seed 7)" in rest
    assert "Not finished" not in page.text


def test_rows_without_a_started_run_are_listed(study: Path) -> None:
    write_manifest(
        study,
        {**all_cells(), "cells/x": ("cifar10 pls", "celm", 42), "cells/y": ("cifar10 pls", "celm", 43)},
    )
    assert "CIFAR-10 pure label skew all runs" in Page(build_report(study)).text
    write_manifest(study, all_cells())
    assert "Not run" not in Page(build_report(study)).text


def test_times_have_their_own_table(study: Path) -> None:
    assert "Times" not in Page(build_report(study)).text
    cell = {"row": "digits pls", "column": "celm", "mean": 0.0625, "percent": False, "low": True}
    (study / "times.json").write_text(json.dumps({"title": "t", "cells": []}))
    assert "Times" not in Page(build_report(study)).text
    (study / "times.json").write_text(json.dumps({"title": "t", "cells": [cell]}))
    page = Page(build_report(study))
    safe(page)
    assert "digits pure label skew 0.062" in page.text.split("Measured by a clock")[1]


def test_rates_over_thresholds_where_there_are_free_riders(study: Path) -> None:
    page = Page(build_report(study))
    assert "Honest clients flagged" in page.text
    assert "Free-riders flagged" in page.text
    assert sum("one line per method. Mean over thresholds: fedavg 0." in label for label in labels(page)) == 2
    assert any(
        "for digits, pls. Lowest: fedavg 12.5 % on yak; celm 12.5 % on yak." in a for a in labels(page)
    )
    safe(page)
    for result in study.rglob("result.json"):
        result.write_text(json.dumps({**json.loads(result.read_text()), "free_riders": []}))
    assert "flagged" not in Page(build_report(study)).text


def test_distributions_are_shown_for_one_row_or_a_table_of_distances(study: Path) -> None:
    def drawn() -> int:
        return sum("True and estimated distribution" in label for label in labels(Page(build_report(study))))

    write_manifest(study, {path: (f"{cell[1]} row", *cell[1:]) for path, cell in all_cells().items()})
    assert drawn() == 0  # of several rows
    write_manifest(study, all_cells())
    assert drawn() == 1  # the only row has room
    write_manifest(study, {path: (f"{cell[1]} row", *cell[1:]) for path, cell in all_cells().items()})
    cells = [{"row": "digits pls", "column": name, "mean": 0.5} for name in ("jsd", "emd_uniform")]
    (study / "table.json").write_text(json.dumps({"title": "d", "cells": cells}))
    assert drawn() == 2
    safe(Page(build_report(study)))


def test_metrics_of_several_kinds_are_marked(study: Path) -> None:
    def page_of_metrics(**kinds: dict[str, bool]) -> Page:
        cells = [
            {"row": f"digits pls {metric}", "column": method, "mean": 0.25, "count": 1, **kind}
            for metric, kind in kinds.items()
            for method in ("fedavg", "celm")
        ]
        (study / "table.json").write_text(json.dumps({"title": "x", "cells": cells, "compete": "columns"}))
        return Page(build_report(study))

    rate = {"percent": False, "low": True}
    page = page_of_metrics(accuracy={}, auroc={"percent": False}, fpr=rate)
    assert "digits pure label skew accuracy, % 25.00" in page.text
    assert "digits pure label skew AUROC 0.250" in page.text
    assert "digits pure label skew false-positive rate ↓ 0.250" in page.text
    assert "In the units of each metric. ↓ means lower is better." in page.text
    uniform = page_of_metrics(fpr=rate)
    assert "digits pure label skew false-positive rate 0.250" in uniform.text
    assert "In the units of each metric. Lower is better." in uniform.text


def test_a_table_of_many_methods_is_transposed(study: Path) -> None:
    ranks = {11: 1, 10: 2}
    cells = [
        {"row": "r", "column": f"m{i}", "mean": i / 100, "std": 0.0, "place": ranks.get(i, 0)}
        for i in range(12)
    ]
    (study / "table.json").write_text(json.dumps({"title": "t", "compete": "columns", "cells": cells}))
    text = build_report(study)
    assert [int(n) for n in re.findall(r'<th scope="row"><bdi class="no-wrap">m(\d+)</bdi>', text)] == list(
        range(12)
    )
    assert re.findall('class="(best|second)">([0-9.]+)<', text) == [("second", "10.00"), ("best", "11.00")]


def test_hostile_study_files_stay_text(study: Path) -> None:
    cells = {
        f"{m}-seed{s}": (HOSTILE[1], HOSTILE[i], s)
        for i, m in enumerate(("fedavg", "celm"))
        for s in (42, 43)
    }
    cells["../../etc"] = (HOSTILE[0], HOSTILE[2], 1)
    write_manifest(
        study,
        cells,
        command=["celm", "study", "$(touch x)\n`y`", "--scale", HOSTILE[0]],
        about=HOSTILE[0] + HOSTILE[1],
        study=HOSTILE[1],
        scale=HOSTILE[2],
        only=[HOSTILE[0], "'; rm -rf ~ #"],
        version=HOSTILE[1],
    )
    (study / "errors.json").write_text(json.dumps({HOSTILE[0]: HOSTILE[1], "x": {"a": HOSTILE[2]}}))
    text = build_report(study)
    page = Page(text)
    safe(page)
    assert """'$(touch x) `y`'""" in page.text
    assert """--only ''"'"'; rm -rf ~ #'""" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.parametrize("command", [["rm", "-rf", "/"], ["celm"], []])
def test_a_foreign_command_is_refused(study: Path, command: list[str]) -> None:
    write_manifest(study, all_cells(), command=command)
    with pytest.raises(CelmError, match=r"study\.json is damaged: .*neither celm study nor celm compare"):
        build_report(study)


@pytest.mark.parametrize("name", ["study.json", "errors.json", "times.json"])
def test_a_damaged_file_is_named(study: Path, name: str) -> None:
    (study / name).write_text("[1]")
    with pytest.raises(CelmError, match=rf"{name} is damaged"):
        build_report(study)


def test_a_study_of_which_nothing_is_finished_has_a_page(study: Path) -> None:
    write_manifest(study, all_cells())
    for path in all_cells():
        shutil.rmtree(study / path)
    page = Page(build_report(study))
    safe(page)
    assert "0 finished runs of 4." in page.text
    assert "digits pure label skew all runs" in page.text


def test_methods_have_weights_and_fidelity_beside_accuracy(study: Path) -> None:
    """The evidence of the handmade run and its counts are known, so is their distance."""
    for folder, weights in (("celm-seed42", [0.7, 0.2, 0.1]), ("celm-seed43", [0.5, 0.3, 0.2])):
        path = study / folder / "result.json"
        result = json.loads(path.read_text())
        result["weights"] = dict(zip(result["weights"], weights, strict=True))
        path.write_text(json.dumps(result))
    for seed in (42, 43):
        path = study / f"fedavg-seed{seed}" / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "evidence": None}))
    result = json.loads((study / "celm-seed42" / "result.json").read_text())
    p, q = (np.array(list(result[key].values()), dtype=float).ravel() for key in ("counts", "evidence"))
    expected = jensenshannon(p / p.sum(), q / q.sum())
    page = Page(build_report(study))
    safe(page)
    row = "method accuracy balanced rare classes fidelity, JSD ↓ largest weight free-riders' weight ↓"
    assert row in page.text
    assert f"celm 75.00 % ± 0.00 % 50.00 % ± 0.00 % 12.50 % ± 0.00 % {expected:.3f} ± 0.000" in page.text
    assert "60.00 % ± 14.14 % 15.00 % ± 7.07 %" in page.text
    assert "– 50.00 % ± 0.00 %" in page.text  # fedavg has no evidence
    weights = [label for label in labels(page) if label.startswith("Final weight of each client")]
    assert weights == [
        "Final weight of each client, one dot per method. "
        "Heaviest: fedavg client-1 with 50.0 %; celm client-0 with 60.0 %."
    ]


def test_a_comparison_shows_the_accuracies_at_the_end(study: Path) -> None:
    ends = [label for label in labels(Page(build_report(study))) if label.startswith("Accuracy at the end")]
    assert ends == ["Accuracy at the end by method, one dot per run. Means: fedavg 60.0 %; celm 75.0 %."]


def test_axes_of_several_methods_span_their_values() -> None:
    methods = {"fedavg": [0.90, 0.91], "celm": [0.93, 0.94]}
    for axes in (per_class_figure(methods, ["a", "b"]), method_weights_figure(methods, ["a", "b"])):
        low, high = axes.get_ylim()
        assert 0.88 < low < 0.90 < 0.94 < high < 0.96
    low, high = method_accuracy_figure(methods).get_xlim()
    assert 0.88 < low < 0.90 < 0.94 < high < 0.96
    one = per_class_figure({"celm": [0.93, 0.94]}, ["a", "b"])
    assert one.get_ylim()[0] < 0 < 1 < one.get_ylim()[1]
    records = {
        m: {1: [{"round": i, "accuracy": v} for i, v in enumerate((0.2, *row), 1)]}
        for m, row in methods.items()
    }
    assert 0.1 < accuracy_figure(records).get_ylim()[0] < 0.2


def test_titles_use_plain_words(study: Path) -> None:
    page = Page(build_report(study))
    assert "digits, pure label skew" in page.text
    assert "digits, pls" not in page.text.split("Settings of all runs")[0]
