"""The page about the signed record: its commands run against a federation whose members keep heads."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from typer.testing import Result

from support.signed_folders import watching
from support.small_grid import SmallGrid, initial, learner, network

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "record.md").read_text(encoding="utf-8")


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_every_command_of_the_page_runs(tmp_path: Path, invoke: Callable[..., Result]) -> None:
    for folder in ("etc", "lib"):
        (tmp_path / folder).mkdir()
    places = {"/etc/celm": tmp_path / "etc", "/var/lib/celm": tmp_path / "lib", "(1, 28, 28)": "(6,)"}
    names: dict[str, Any] = {"model": network()}
    outputs: list[str] = []
    for language, text in blocks():
        for shown, used in {**places, "classes=10": "classes=3"}.items():
            text = text.replace(shown, str(used))
        if language == "python":
            exec(compile(text, "<docs/record.md>", "exec"), names)
            if "strategy =" in text:
                play(names["strategy"], tmp_path)
            continue
        for command in text.splitlines():
            program, *arguments = shlex.split(command)
            assert program == "celm"
            done = invoke(*arguments)
            assert done.exit_code == 0, (command, done.output)
            outputs.append(done.stdout)
    assert "north in round 3" in outputs[3]
    assert "nothing up to round 4 was changed" in outputs[3]
    assert "both files have the same head" in outputs[4]


def play(strategy: Any, tmp_path: Path) -> None:
    """Play four rounds; north keeps heads, and sends a copy of its file as south would."""
    heads = tmp_path / "lib" / "heads"
    north = watching(learner(0.1), heads, tmp_path / "etc" / "consortium")
    grid = SmallGrid({"north": north, "south": learner(-0.2), "east": learner(0.3)})
    strategy.start(grid, initial(), num_rounds=4)
    shutil.copy(heads / "heads.jsonl", tmp_path / "from-south.jsonl")


def test_the_page_shows_the_figures_of_the_benchmark() -> None:
    report = json.loads((ROOT / "results" / "bench" / "signed_record.json").read_text())
    for point in report["points"]:
        (row,) = re.findall(rf"^\| {point['clients']:,} \| (.*) \|$", PAGE, re.MULTILINE)
        shown = [float(re.sub(r"[^\d.]", "", cell)) for cell in row.split("|")]
        milliseconds = [point["milliseconds"][step] for step in ("sign", "send", "check", "restart")]
        kilobytes = [point["bytes"][part] / 1000 for part in ("message", "head")]
        assert shown == pytest.approx([*milliseconds, *kilobytes], rel=0.1, abs=0.05)


def test_the_picture_is_there_for_light_and_dark_pages() -> None:
    for name in re.findall(r"\]\(assets/([\w.-]+)#only-", PAGE):
        assert (ROOT / "docs" / "assets" / name).read_text().startswith("<?xml")
