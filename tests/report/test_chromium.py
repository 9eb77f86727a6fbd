"""The report in a real browser: it sorts, fits, complains of nothing, and a client named <script> is a name.

The page's policy forbids foreign scripts, so a copy is made whose policy names one more: the one that looks
around and tells the page that frames it (a frame, because a headless window is never as narrow as a phone).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pypdf import PdfReader

import celm
from celm.federation.experiment import Experiment
from celm.models import build_model
from celm.report.html import report, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

LOOK_AROUND = """
const table = document.querySelector("table.sortable");
const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
const heads = [...table.tHead.querySelectorAll("th")];
const told = { names: names(), buttons: heads.map((head) => head.firstElementChild.tagName), sorted: {} };
for (const head of heads.slice(0, 2)) {
  for (const turn of [0, 1]) {
    head.querySelector("button").click();
    told.sorted[head.getAttribute("aria-sort") + " " + head.textContent.trim()] = names();
  }
}
told.marks = heads.filter((head) => head.hasAttribute("aria-sort")).length;
for (const part of document.querySelectorAll("details")) part.open = true;
told.width = [document.documentElement.scrollWidth, innerWidth];
told.scripts = document.scripts.length - 1;
told.outside = [...document.querySelectorAll("main *")].filter(
  (e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, .picture, pre"),
).map((e) => e.tagName + "." + e.getAttribute("class"));
const figure = document.querySelector("figure svg").getBoundingClientRect();
told.figure = [figure.width, figure.height];
told.folders = [...document.querySelectorAll("td.place")].map((cell) => cell.getBoundingClientRect().height);
told.background = getComputedStyle(document.body).backgroundColor;
parent.postMessage(JSON.stringify(told), "*");
"""

FRAME = """<!doctype html><body><iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe>
<script>addEventListener("message", (event) => {{ document.body.textContent = event.data; }});</script>"""


def chromium(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1400,900",
            "--virtual-time-budget=5000",
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return done


def printed(page: str, folder: Path) -> list[str]:
    """The text of every page on paper."""
    (folder / "page.html").write_text(page)
    paper = folder / "page.pdf"
    chromium(folder, "--no-pdf-header-footer", f"--print-to-pdf={paper}", (folder / "page.html").as_uri())
    return [page.extract_text() for page in PdfReader(paper).pages]


def browse(page: str, folder: Path, width: int, *options: str) -> dict[str, Any]:
    """What the page told of itself; anything on its console fails the test."""
    digest = base64.b64encode(hashlib.sha256(LOOK_AROUND.encode()).digest()).decode()
    copy = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    copy = copy.replace("</body>", f"<script>{LOOK_AROUND}</script></body>")
    (folder / "copy.html").write_text(copy)
    (folder / "frame.html").write_text(FRAME.format(page="copy.html", width=width))
    done = chromium(folder, *options, "--dump-dom", (folder / "frame.html").as_uri())
    body = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert body, done.stdout[:2000] + done.stderr[-2000:]
    told: dict[str, Any] = json.loads(html.unescape(body[1]))
    return told


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("real") / "run"
    celm.run(
        Experiment.parse(
            {"observe": [{"name": "shapfed"}], "probe": {"steps": 5}, "run": {"rounds": 3, "workers": 0}}
        ),
        place,
    )
    return place


@pytest.mark.parametrize("width", [390, 1280])
def test_a_real_run_fits_and_sorts(real_run: Path, tmp_path: Path, width: int) -> None:
    told = browse(report(real_run, probe_images=True), tmp_path, width)
    assert told["width"][0] <= told["width"][1] == width
    assert told["outside"] == []
    assert told["figure"][0] > 250
    assert told["scripts"] == 1
    assert set(told["buttons"]) == {"BUTTON"}
    metrics = json.loads((real_run / "result.json").read_text())
    heavy = sorted(metrics["weights"], key=lambda name: -metrics["weights"][name])
    assert told["sorted"]["descending weight"] == heavy
    assert told["sorted"]["ascending weight"] == heavy[::-1]
    assert told["sorted"]["descending client"] == sorted(metrics["weights"], reverse=True)
    assert told["marks"] == 1


def test_on_paper_headings_repeat_and_none_is_left_alone(
    tmp_path: Path, handmade: Callable[..., Path]
) -> None:
    names = [f"client-{i}" for i in range(90)]
    many: dict[str, Any] = {
        "weights": dict.fromkeys(names, 1 / 90),
        "evidence": {key: [1.0, 2.0, 0.0, 0.0] for key in names},
        "counts": {key: [1, 2, 0, 0] for key in names},
    }
    pages = printed(report(handmade(tmp_path / "run", **many)), tmp_path)
    table = [page for page in pages if len(re.findall(r"client-\d+\s+1\.1 %\s", page)) > 5]
    assert len(table) > 1
    assert all(re.search(r"client\s+weight\s+classes", page) for page in table)
    assert not any("Click a heading" in page for page in pages)
    headings = re.compile(r"(Contributions|Evidence by class|Over the rounds|Repeat it)\s*$")
    assert not [page[-200:] for page in pages if headings.search(page)]


def test_dark_mode_is_dark(real_run: Path, tmp_path: Path) -> None:
    told = browse(report(real_run), tmp_path, 1280, "--blink-settings=preferredColorScheme=0")
    assert told["background"] == "rgb(17, 19, 23)"


@pytest.mark.parametrize("width", [390, 1280])
def test_a_client_named_script_is_a_name(tmp_path: Path, handmade: Callable[..., Path], width: int) -> None:
    names = ["<script>document.title = 1</script>", "b" * 10_000, "\u202ec\x00"]
    place = handmade(tmp_path / "run", names=names, classes=["<b>", "x" * 300, "'", '"'])
    told = browse(report(place), tmp_path, width)
    assert told["scripts"] == 1
    assert told["names"][0] == names[0]
    assert told["width"][0] <= told["width"][1]
    assert told["outside"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_study_fits_and_sorts(study: Path, tmp_path: Path, width: int) -> None:
    write_report(study / "celm-seed42")
    (study / "celm-seed43").rename(study / ("fashion_mnist_dirichlet_0.05-celm+fedrs-" * 3 + "seed43"))
    told = browse(report(study), tmp_path, width)
    assert max(told["folders"]) < 50  # one line of text and its margins
    assert told["width"][0] <= told["width"][1]
    assert told["outside"] == []
    # What is missing comes last, whichever way.
    assert told["sorted"]["descending accuracy"] == ["celm", "fedavg", "fedrs"]
    assert told["sorted"]["ascending accuracy"] == ["fedavg", "celm", "fedrs"]


def test_a_study_fits_a_phone_however_long_its_labels_are(study: Path, tmp_path: Path) -> None:
    label = "x" * 60
    cells = {
        f"{method}-seed{seed}": {"row": label, "method": method.replace("celm", label), "seed": seed}
        for method in ("fedavg", "celm")
        for seed in (42, 43)
    }
    asked = {"command": ["celm", "study", "own.toml"], "title": label, "about": label, "cells": cells}
    (study / "study.json").write_text(json.dumps(asked))
    told = browse(report(study), tmp_path, 390)
    assert told["width"][0] <= told["width"][1]
    assert told["outside"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_federation_fits_and_sorts(tmp_path: Path, state: Callable[..., Path], width: int) -> None:
    told = browse(report(state(tmp_path / "state")), tmp_path, width)
    assert told["width"][0] <= told["width"][1] == width
    assert told["outside"] == []
    assert told["scripts"] == 1
    assert told["sorted"]["descending weight"] == ["north", "south", "east"]
    assert told["sorted"]["ascending client"] == ["east", "north", "south"]


@pytest.mark.parametrize("width", [390, 1280])
def test_a_member_named_script_is_a_name(tmp_path: Path, state: Callable[..., Path], width: int) -> None:
    names = ["<script>document.title = 1</script>", "b" * 10_000, "\u202ec\x00"]
    told = browse(report(state(tmp_path / "state", names)), tmp_path, width)
    assert told["scripts"] == 1
    assert told["names"][0] == names[0]
    assert told["width"][0] <= told["width"][1]
    assert told["outside"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_an_audit_fits_and_sorts_whatever_clients_are_called(tmp_path: Path, width: int) -> None:
    model = build_model("mlp", {"widths": [8]}, (1, 8, 8), 4)
    names = ["<script>alert(1)</script>", "x" * 150, "b"]
    states = {}
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        states[name] = {key: torch.randn_like(value) for key, value in model.state_dict().items()}
    found = celm.audit(
        model.state_dict(),
        states,
        model="mlp",
        options={"widths": [8]},
        input_shape=(1, 8, 8),
        classes=4,
        probe={"steps": 3},
    )
    told = browse(found.to_html(), tmp_path, width)
    assert told["width"][0] <= told["width"][1] == width
    assert told["outside"] == []
    assert told["scripts"] == 1
    best = sorted(found.scores, key=lambda name: -found.scores[name])
    assert [name[:20] for name in told["sorted"]["descending score"]] == [name[:20] for name in best]
