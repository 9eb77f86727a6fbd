"""The report of a study: what was asked for, every run, what failed or is missing, and the figures of its kind."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.report.html import report
from report.pages import HOSTILE, Page, safe

Handmade = Callable[..., Path]


def ask(folder: Path, cells: dict[str, tuple[str, str, int]], **changes: Any) -> None:
    named = {place: dict(zip(("row", "method", "seed"), cell, strict=True)) for place, cell in cells.items()}
    asked = {
        "command": ["celm", "study", "my study.toml", "--scale", "smoke"],
        "title": "Mine",
        "about": "Levels do not compare.",
        "study": "my study.toml",
        "scale": "smoke",
        "seeds": [42, 43],
        "only": ["split=pls method=celm", "seed=43"],
        "version": "9.8.7",
        "cells": named,
    }
    (folder / "study.json").write_text(json.dumps({**asked, **changes}))


def whole(study: Path) -> dict[str, tuple[str, str, int]]:
    return {f"{m}-seed{s}": ("digits pls", m, s) for m in ("fedavg", "celm") for s in (42, 43)}


def labels(page: Page) -> list[str]:
    return [v or "" for tag, name, v in page.attributes if tag == "svg" and name == "aria-label"]


def test_what_was_asked_for_and_how_to_repeat_it(study: Path) -> None:
    ask(study, whole(study))
    page = Page(report(study))
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


def test_settings_are_told_apart_by_row_and_by_method(study: Path) -> None:
    for seed in (42, 43):
        place = study / f"celm-seed{seed}" / "settings.toml"
        place.write_text(place.read_text().replace("clients = 5", "clients = 7"))
    cells = {place: (f"{method} row", method, seed) for place, (_, method, seed) in whole(study).items()}
    cells["fedavg-seed42"] = ("fedavg row", "other", 42)
    text = (study / "fedavg-seed42" / "settings.toml").read_text()
    (study / "fedavg-seed42" / "settings.toml").write_text(text.replace("steps = 200", "steps = 50"))
    ask(study, cells)
    page = Page(report(study))
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
        return sorted(re.findall('<td class="place">([^<]*)<', report(tmp_path)))

    everything = sorted(f"cells/r-{name}-seed{seed}" for name in names for seed in (42, 43))
    assert folders() == everything  # without study.json they are one method, of four runs
    ask(tmp_path, {f"cells/r-{n}-seed{s}": ("r", n, s) for n in names for s in (42, 43)})
    assert folders() == everything
    assert {"short", "long"} <= set(
        re.findall('<th scope="row"><bdi class="short">([^<]*)</bdi></th><td', report(tmp_path))
    )


def test_runs_of_some_clients_are_listed_but_not_drawn(study: Path, handmade: Handmade) -> None:
    place = handmade(study / "cells/some", accuracy=0.125)
    settings = (place / "settings.toml").read_text()
    (place / "settings.toml").write_text(settings.replace("[run]", '[run]\nclients = ["client-0"]'))
    page = Page(report(study))
    assert "5 finished runs" in page.text
    assert "12.50 %" in page.text
    assert not any("some clients" in label for label in labels(page))


def test_what_failed_says_why(study: Path) -> None:
    ask(study, {**whole(study), "cells/x": ("digits sls", "moon", 7), "cells/y": ("digits sls", "celm", 7)})
    (study / "celm-seed43" / "result.json").unlink()
    (study / "fedavg-seed43" / "result.json").write_text("{")
    errors = {
        "digits sls-moon-7": "no space\nleft",
        "digits pls-celm-43": "killed",
        "digits pls-celm-42": "old",
    }
    (study / "errors.json").write_text(json.dumps(errors))
    page = Page(report(study))
    safe(page)
    failed, rest = page.text.split("run error")[1].split("Not run")
    assert "digits sls, moon, seed 7 no space left" in failed
    assert "digits pls, celm, seed 43 killed" in failed
    assert re.search(r"digits pls, fedavg, seed 43 .*result\.json is damaged", failed)
    assert "celm, seed 42" not in failed  # it is done by now
    assert "2 finished runs, 3 failed of 6" in page.text
    assert "digits sls celm (seed 7)" in rest
    assert "Not finished" not in page.text


def test_rows_that_were_never_begun_are_said_so(study: Path) -> None:
    ask(
        study,
        {**whole(study), "cells/x": ("cifar10 pls", "celm", 42), "cells/y": ("cifar10 pls", "celm", 43)},
    )
    assert "cifar10 pls all of it" in Page(report(study)).text
    ask(study, whole(study))
    assert "Not run" not in Page(report(study)).text


def test_times_are_a_table_of_their_own(study: Path) -> None:
    assert "Times" not in Page(report(study)).text
    cell = {"row": "digits pls", "column": "celm", "mean": 0.0625, "percent": False, "low": True}
    (study / "times.json").write_text(json.dumps({"title": "t", "cells": []}))
    assert "Times" not in Page(report(study)).text
    (study / "times.json").write_text(json.dumps({"title": "t", "cells": [cell]}))
    page = Page(report(study))
    safe(page)
    assert "digits pls 0.062" in page.text.split("Measured by a clock")[1]


def test_rates_over_thresholds_where_there_are_free_riders(study: Path) -> None:
    page = Page(report(study))
    assert "Honest clients flagged" in page.text
    assert "Free-riders flagged" in page.text
    assert sum("a line a method. Mean over thresholds: fedavg 0." in label for label in labels(page)) == 2
    assert any(
        "for digits, pls. Lowest: fedavg 12.5 % on yak; celm 12.5 % on yak." in a for a in labels(page)
    )
    safe(page)
    for result in study.rglob("result.json"):
        result.write_text(json.dumps({**json.loads(result.read_text()), "free_riders": []}))
    assert "flagged" not in Page(report(study)).text


def test_distributions_are_shown_where_the_table_is_of_distances(study: Path) -> None:
    def drawn() -> int:
        return sum("True and estimated distribution" in label for label in labels(Page(report(study))))

    assert drawn() == 0
    cells = [{"row": "digits pls", "column": name, "mean": 0.5} for name in ("jsd", "emd_uniform")]
    (study / "table.json").write_text(json.dumps({"title": "d", "cells": cells}))
    assert drawn() == 1
    safe(Page(report(study)))


def test_figures_of_several_kinds_say_which_is_which(study: Path) -> None:
    def told(**kinds: dict[str, bool]) -> Page:
        cells = [
            {"row": f"digits pls {metric}", "column": method, "mean": 0.25, "count": 1, **kind}
            for metric, kind in kinds.items()
            for method in ("fedavg", "celm")
        ]
        (study / "table.json").write_text(json.dumps({"title": "x", "cells": cells, "compete": "columns"}))
        return Page(report(study))

    rate = {"percent": False, "low": True}
    page = told(accuracy={}, auroc={"percent": False}, fpr=rate)
    assert "digits pls accuracy, % 25.00" in page.text
    assert "digits pls auroc 0.250" in page.text
    assert "digits pls fpr ↓ 0.250" in page.text
    assert "In the units of each metric; ↓: less is better" in page.text
    alike = told(fpr=rate)
    assert "digits pls fpr 0.250" in alike.text
    assert "In the units of each metric; less is better" in alike.text


def test_a_table_of_many_methods_is_turned(study: Path) -> None:
    places = {11: 1, 10: 2}
    cells = [
        {"row": "r", "column": f"m{i}", "mean": i / 100, "std": 0.0, "place": places.get(i, 0)}
        for i in range(12)
    ]
    (study / "table.json").write_text(json.dumps({"title": "t", "compete": "columns", "cells": cells}))
    text = report(study)
    assert [int(n) for n in re.findall(r'<th scope="row"><bdi class="short">m(\d+)</bdi>', text)] == list(
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
    ask(
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
    text = report(study)
    page = Page(text)
    safe(page)
    assert """'$(touch x) `y`'""" in page.text
    assert """--only ''"'"'; rm -rf ~ #'""" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.parametrize("command", [["rm", "-rf", "/"], ["celm"], []])
def test_a_command_of_others_is_not_shown(study: Path, command: list[str]) -> None:
    ask(study, whole(study), command=command)
    with pytest.raises(CelmError, match=r"study\.json is damaged: .*neither celm study nor celm compare"):
        report(study)


@pytest.mark.parametrize("name", ["study.json", "errors.json", "times.json"])
def test_a_damaged_file_is_named(study: Path, name: str) -> None:
    (study / name).write_text("[1]")
    with pytest.raises(CelmError, match=rf"{name} is damaged"):
        report(study)


def test_a_study_of_which_nothing_is_finished_has_a_page(study: Path) -> None:
    ask(study, whole(study))
    for place in whole(study):
        shutil.rmtree(study / place)
    page = Page(report(study))
    safe(page)
    assert "0 finished runs of 4." in page.text
    assert "digits pls all of it" in page.text
