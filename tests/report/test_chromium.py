"""The report in a real browser: it sorts, it fits, its console is empty, and a client named <script> is a name.

The page's policy forbids foreign scripts. So the test makes a copy whose policy allows one more: a script that inspects
the page and sends its findings to the page that frames it. A frame can be as
narrow as a phone; a headless window cannot.
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
from celm.experiment.config import Experiment
from celm.models import build_model
from celm.report.audit_page import audit_page
from celm.report.build import build_report, write_report
from support.many_clients import large_audit, write_large_federation

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

INSPECT_SCRIPT = """
const tables = [...document.querySelectorAll("table.sortable")];
const table = tables.find((each) => /^\\s*client[^]*weight/.test(each.tHead.textContent)) ?? tables[0];
const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
const heads = [...table.tHead.querySelectorAll("th")];
const observed = { names: names(), buttons: heads.map((head) => head.firstElementChild.tagName), sorted: {} };
for (const head of heads.slice(0, 2)) {
  for (const turn of [0, 1]) {
    head.querySelector("button").click();
    observed.sorted[head.getAttribute("aria-sort") + " " + head.textContent.trim()] = names();
  }
}
observed.marks = heads.filter((head) => head.hasAttribute("aria-sort")).length;
for (const part of document.querySelectorAll("details")) part.open = true;
observed.width = [document.documentElement.scrollWidth, innerWidth];
observed.scripts = document.scripts.length - 1;
observed.outside = [...document.querySelectorAll("main *")].filter(
  (e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, .figure-scroll, pre"),
).map((e) => e.tagName + "." + e.getAttribute("class"));
const figure = document.querySelector("figure svg").getBoundingClientRect();
observed.figure = [figure.width, figure.height];
observed.folders = [...document.querySelectorAll("td.folder")].map((cell) => cell.getBoundingClientRect().height);
observed.reasons = [...document.querySelectorAll("table.reasons")].map(
  (each) => each.parentElement.scrollWidth - each.parentElement.clientWidth,
);
observed.background = getComputedStyle(document.body).backgroundColor;
parent.postMessage(JSON.stringify(observed), "*");
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


def print_pages(page: str, folder: Path) -> list[str]:
    """Return the text of every printed page."""
    (folder / "page.html").write_text(page)
    paper = folder / "page.pdf"
    chromium(folder, "--no-pdf-header-footer", f"--print-to-pdf={paper}", (folder / "page.html").as_uri())
    return [page.extract_text() for page in PdfReader(paper).pages]


def browse(
    page: str, folder: Path, width: int, *options: str, script: str = INSPECT_SCRIPT
) -> dict[str, Any]:
    """Return what the script observed in the page; any message on the console fails the test."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    copy = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    copy = copy.replace("</body>", f"<script>{script}</script></body>")
    (folder / "copy.html").write_text(copy)
    (folder / "frame.html").write_text(FRAME.format(page="copy.html", width=width))
    done = chromium(folder, *options, "--dump-dom", (folder / "frame.html").as_uri())
    body = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert body, done.stdout[:2000] + done.stderr[-2000:]
    observed: dict[str, Any] = json.loads(html.unescape(body[1]))
    return observed


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "run"
    celm.run(
        Experiment.parse(
            {"observe": [{"name": "shapfed"}], "probe": {"steps": 5}, "run": {"rounds": 3, "workers": 0}}
        ),
        folder,
    )
    return folder


@pytest.mark.parametrize("width", [390, 1280])
def test_a_real_run_fits_and_sorts(real_run: Path, tmp_path: Path, width: int) -> None:
    observed = browse(build_report(real_run, probe_images=True), tmp_path, width)
    assert observed["width"][0] <= observed["width"][1] == width
    assert observed["outside"] == []
    assert observed["figure"][0] > 250
    assert observed["scripts"] == 1
    assert set(observed["buttons"]) == {"BUTTON"}
    metrics = json.loads((real_run / "result.json").read_text())
    heavy = sorted(metrics["weights"], key=lambda name: -metrics["weights"][name])
    assert observed["sorted"]["descending weight"] == heavy
    assert observed["sorted"]["ascending weight"] == heavy[::-1]
    assert observed["sorted"]["descending client"] == sorted(metrics["weights"], reverse=True)
    assert observed["marks"] == 1


def test_on_paper_headings_repeat_and_none_is_left_alone(
    tmp_path: Path, handmade: Callable[..., Path]
) -> None:
    names = [f"client-{i}" for i in range(90)]
    many: dict[str, Any] = {
        "weights": dict.fromkeys(names, 1 / 90),
        "evidence": {key: [1.0, 2.0, 0.0, 0.0] for key in names},
        "counts": {key: [1, 2, 0, 0] for key in names},
    }
    page = build_report(handmade(tmp_path / "run", **many))
    opened = page.replace('<details class="rest">', '<details class="rest" open>')  # as a reader may leave it
    pages = print_pages(opened, tmp_path)
    table = [page for page in pages if len(re.findall(r"client-\d+\s+1\.000\s+2\.000", page)) > 2]
    assert len(table) > 1
    assert all(re.search(r"client\s+cat\s+dog", page) for page in table)
    assert not any("Click a heading" in page for page in pages)
    headings = re.compile(r"(Contributions|Evidence by class|Rounds|Reproduce)\s*$")
    assert not [page[-200:] for page in pages if headings.search(page)]


def test_dark_mode_is_dark(real_run: Path, tmp_path: Path) -> None:
    observed = browse(build_report(real_run), tmp_path, 1280, "--blink-settings=preferredColorScheme=0")
    assert observed["background"] == "rgb(17, 19, 23)"


@pytest.mark.parametrize("width", [390, 1280])
def test_a_client_named_script_is_a_name(tmp_path: Path, handmade: Callable[..., Path], width: int) -> None:
    names = ["<script>document.title = 1</script>", "b" * 10_000, "\u202ec\x00"]
    weights = dict(zip(names, (0.5, 0.4, 0.1), strict=True))
    folder = handmade(tmp_path / "run", names=names, classes=["<b>", "x" * 300, "'", '"'], weights=weights)
    observed = browse(build_report(folder), tmp_path, width)
    assert observed["scripts"] == 1
    assert observed["names"][0] == names[0]
    assert observed["width"][0] <= observed["width"][1]
    assert observed["outside"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_study_fits_and_sorts(study: Path, tmp_path: Path, width: int) -> None:
    write_report(study / "celm-seed42")
    (study / "celm-seed43").rename(study / ("fashion_mnist_dirichlet_0.05-celm+fedrs-" * 3 + "seed43"))
    observed = browse(build_report(study), tmp_path, width)
    assert max(observed["folders"]) < 50  # one line of text and its margins
    assert observed["width"][0] <= observed["width"][1]
    assert observed["outside"] == []
    # What is missing comes last, whichever way.
    assert observed["sorted"]["descending accuracy"] == ["celm", "fedavg", "fedrs"]
    assert observed["sorted"]["ascending accuracy"] == ["fedavg", "celm", "fedrs"]


def test_a_study_fits_a_phone_however_long_its_labels_are(study: Path, tmp_path: Path) -> None:
    label = "x" * 60
    cells = {
        f"{method}-seed{seed}": {"row": label, "method": method.replace("celm", label), "seed": seed}
        for method in ("fedavg", "celm")
        for seed in (42, 43)
    }
    manifest = {"command": ["celm", "study", "own.toml"], "title": label, "about": label, "cells": cells}
    (study / "study.json").write_text(json.dumps(manifest))
    observed = browse(build_report(study), tmp_path, 390)
    assert observed["width"][0] <= observed["width"][1]
    assert observed["outside"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_federation_fits_and_sorts(tmp_path: Path, state: Callable[..., Path], width: int) -> None:
    observed = browse(build_report(state(tmp_path / "state")), tmp_path, width)
    assert observed["width"][0] <= observed["width"][1] == width
    assert observed["outside"] == []
    assert observed["scripts"] == 1
    assert observed["reasons"] == [0, 0]  # flagged and excluded: no reason is cut off
    assert observed["sorted"]["descending weight"] == ["north", "south", "east"]
    assert observed["sorted"]["ascending client"] == ["east", "north", "south"]


@pytest.mark.parametrize("width", [390, 1280])
def test_a_member_named_script_is_a_name(tmp_path: Path, state: Callable[..., Path], width: int) -> None:
    names = ["<script>document.title = 1</script>", "b" * 10_000, "\u202ec\x00"]
    observed = browse(build_report(state(tmp_path / "state", names)), tmp_path, width)
    assert observed["scripts"] == 1
    assert observed["names"][0] == names[0]
    assert observed["width"][0] <= observed["width"][1]
    assert observed["outside"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_an_audit_fits_and_sorts_whatever_clients_are_called(tmp_path: Path, width: int) -> None:
    model = build_model("mlp", {"widths": [8]}, (1, 8, 8), 4)
    names = ["<script>alert(1)</script>", "x" * 150, "b"]
    states = {}
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        states[name] = {key: torch.randn_like(value) for key, value in model.state_dict().items()}
    audit = celm.audit(
        model.state_dict(),
        states,
        model="mlp",
        options={"widths": [8]},
        input_shape=(1, 8, 8),
        classes=4,
        probe={"steps": 3},
    )
    observed = browse(audit.to_html(), tmp_path, width)
    assert observed["width"][0] <= observed["width"][1] == width
    assert observed["outside"] == []
    assert observed["scripts"] == 1
    best = sorted(audit.scores, key=lambda name: -audit.scores[name])
    assert [name[:20] for name in observed["sorted"]["descending score"]] == [name[:20] for name in best]


CUT_SCRIPT = """
const table = document.querySelector("#contributions .scroll");
const headings = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
parent.postMessage(JSON.stringify({ cut: table.scrollWidth - table.clientWidth, headings }), "*");
"""


def test_no_column_of_an_audit_is_cut_on_a_wide_screen(tmp_path: Path) -> None:
    observed = browse(audit_page(large_audit(10)), tmp_path, 1280, script=CUT_SCRIPT)
    assert observed["headings"][-1] == "flagged"
    assert observed["cut"] <= 0


SEARCH_SCRIPT = """
const rest = [...document.querySelectorAll("details.rest")];
const input = rest[0].querySelector("input");
const shown = () => [...rest[0].querySelectorAll("li")].filter((entry) => !entry.hidden).length;
const observed = { inputs: rest.filter((each) => each.querySelector("input.search")).length, rest: rest.length };
observed.open = rest.filter((each) => each.open).length;
observed.before = shown();
input.value = "SITE-0042";
input.dispatchEvent(new Event("input"));
observed.found = shown();
observed.status = rest[0].querySelector("[role=status]").textContent;
input.value = "";
input.dispatchEvent(new Event("input"));
observed.after = shown();
for (const each of rest) each.open = true;
observed.width = [document.documentElement.scrollWidth, innerWidth];
parent.postMessage(JSON.stringify(observed), "*");
"""


def test_many_clients_are_folded_and_can_be_searched(tmp_path: Path) -> None:
    page = build_report(write_large_federation(tmp_path / "state", 60, rounds=6))
    observed = browse(page, tmp_path, 390, script=SEARCH_SCRIPT)
    assert observed["inputs"] == observed["rest"] >= 4
    assert observed["open"] == 0
    assert (observed["before"], observed["found"], observed["after"]) == (60, 1, 60)
    assert observed["status"] == "1 of 60"
    assert observed["width"][0] <= observed["width"][1] == 390


def test_folded_clients_are_not_printed(tmp_path: Path) -> None:
    page = build_report(write_large_federation(tmp_path / "state", 60, rounds=6))
    text = " ".join(print_pages(page, tmp_path))
    assert "All 60 clients in a sentence each" in text
    assert len(set(re.findall(r"site-\d{4}", text))) < 40
