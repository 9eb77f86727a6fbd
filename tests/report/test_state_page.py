"""The report of a Flower federation, and the check of its record from the shell: both without Flower."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from celm.base.errors import CelmError
from celm.report.html import report
from celm.report.reading import ToldState
from celm.report.state_page import state_page
from report.pages import HOSTILE, Page, safe

StateMaker = Callable[..., Path]


def last_digest(place: Path) -> str:
    """As the docs tell operators to make it."""
    line = (place / "rounds.jsonl").read_bytes().split(b"\n")[-2]
    return hashlib.sha256(line).hexdigest()


def test_it_says_who_contributed_what(tmp_path: Path, state: StateMaker) -> None:
    place = state(tmp_path / "state")
    page = Page(report(place))
    for words in (
        "3 clients in a Flower federation, weighed by celm, after round 4 of 6",
        "north: 50.0 % of the weight; evidence for 2 of 4 classes; sole holder of class 0",
        "south: 40.0 % of the weight; evidence for 3 of 4 classes; sole holder of classes 2 and 3",
        "east: 10.0 % of the weight; no evidence for any class; left out in 1 round; idle when last looked at",
        "From round 2, the last that was probed.",
        "Unchanged from round 2 on.",
        "east 1 3 no reply in time",
        "east 1 4 did not work",
        "1 attempt at a round with too few usable replies",
        "south: replied 2 times",
        "all 4 lines followed from one another",
        f"last line {last_digest(place)}",
        "rule.warmup 2",
        "model.0.weight [5, 6]",
        "celm 0.1.0, flwr 1.42.0",
        "raises its own: do not pay by these weights",
    ):
        assert words in page.text, words
    pictures = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    assert len(pictures) == 4  # evidence, shares, weights, scores
    safe(page)


def test_a_round_in_which_the_filter_refused_a_client_does_not_count_for_it(
    tmp_path: Path, state: StateMaker
) -> None:
    place = state(tmp_path / "state")
    told = ToldState(place)
    before = sum("south" in each.received for each in told.rounds)
    assert f" {before} – –" in Page(report(place)).text  # rounds, absent, left out
    refused = told.rounds[-1].model_copy(update={"excluded": {"south": "refused by the filter"}})
    told.rounds = [*told.rounds[:-1], refused]
    assert "south" in refused.received
    text = Page(state_page(told)).text
    assert f" {before - 1} – 1" in text


def test_hostile_names_and_reasons_stay_text(tmp_path: Path, state: StateMaker) -> None:
    a, b, c = HOSTILE
    idle = {"idle": [a, 7], "removed": {"x": 1}, "unreadable": [b]}
    place = state(
        tmp_path / "state",
        HOSTILE,
        excluded={c: a, b: c},
        diagnostics=idle,
        time=a,
        model=b,
        versions={a: b},
        merge=c,
    )
    page = Page(report(place))
    safe(page)
    assert a in page.text
    assert len(page.text) < 40_000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"standing": {}}, "no clients"),
        ({"standing": None}, "standing"),
        ({"standing": {"a": "x"}}, "standing"),
        ({"evidence": {"north": [1.0]}}, "a number for every class"),
        ({"excluded": [1]}, "excluded"),
        ({"time": 3}, "time"),
    ],
)
def test_a_damaged_line_is_named(
    tmp_path: Path, state: StateMaker, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CelmError, match=f"rounds.jsonl is damaged: .*{words}"):
        report(state(tmp_path / "state", **changes))


def test_a_rule_without_evidence_has_weights(tmp_path: Path, state: StateMaker) -> None:
    place = state(tmp_path / "state")
    lines = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()][:1]
    (place / "rounds.jsonl").write_text(json.dumps({**lines[0], "evidence": None, "scores": None}) + "\n")
    page = Page(report(place))
    assert "No round was probed" in page.text
    assert "north: 50.0 % of the weight" in page.text
    safe(page)


def test_a_changed_record_has_no_report(
    tmp_path: Path, state: StateMaker, refused: Callable[..., str]
) -> None:
    place = state(tmp_path / "state")
    text = (place / "rounds.jsonl").read_text()
    (place / "rounds.jsonl").write_text(text.replace("no reply in time", "it was on holiday"))
    assert "at line 3 or 4" in refused("report", place)
    (place / "rounds.jsonl").write_text(text)
    (place / "settings.json").unlink()
    assert "settings.json" in refused("report", place)
    assert not (place / "report.html").exists()


def test_the_shell_confirms_a_record(
    tmp_path: Path, state: StateMaker, invoke: Callable[..., Result]
) -> None:
    last = last_digest(state(tmp_path / "state"))
    done = invoke("audit-verify", "state")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("up to round 4 every line follows from the one before; whether the last")
    assert last in done.stdout
    done = invoke("audit-verify", "state", "--last", last)
    assert done.exit_code == 0, done.output
    assert (
        done.stdout
        == f"up to round 4 the record is as it was when the digest was given out; last line SHA-256 {last}\n"
    )
    done = invoke("audit-verify", "state", "--last", last, "--format", "json")
    told = {"state": str(tmp_path / "state"), "verified": True, "problems": [], "rounds": 4, "last": last}
    assert json.loads(done.stdout) == told


def test_the_shell_refuses_in_one_line(
    tmp_path: Path, state: StateMaker, invoke: Callable[..., Result], refused: Callable[..., str]
) -> None:
    place = state(tmp_path / "state")
    last = last_digest(place)
    lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
    assert "not a SHA-256" in refused("audit-verify", "state", "--last", "3f")
    assert "cannot be repeated" in refused("audit-verify", "state", "--full")
    (place / "rounds.jsonl").write_text("".join(lines[:3]))
    assert "no line of" in refused("audit-verify", "state", "--last", last)
    done = invoke("audit-verify", "state", "--last", last, "--format", "json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["verified"] is False
    (place / "rounds.jsonl").write_text("")
    assert "no record" in refused("audit-verify", "state")
    (place / "rounds.jsonl").unlink()
    (place / "names.json").write_text("{}")
    assert "no record" in refused("audit-verify", "state")
    (tmp_path / "other").mkdir()
    assert "not the state of a Flower strategy" in refused("audit-verify", "other", "--last", last)


WITHOUT_FLOWER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flwr", "ray"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
from celm.cli import main
main()
"""


def test_it_needs_no_flower(tmp_path: Path, state: StateMaker) -> None:
    place = state(tmp_path / "state")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FLOWER, "report", str(place)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, f"report: {place / 'report.html'}\n"), done.stderr
