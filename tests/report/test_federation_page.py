"""The report of a federation, and the check of its record on the command line, both without Flower."""

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
from celm.base.json_files import append_jsonl
from celm.report.build import build_report
from celm.report.federation_page import federation_page
from celm.report.views import FederationView
from support.pages import HOSTILE, Page, safe

StateMaker = Callable[..., Path]


def last_digest(folder: Path) -> str:
    """Compute the digest as the documentation tells operators to."""
    line = (folder / "rounds.jsonl").read_bytes().split(b"\n")[-2]
    return hashlib.sha256(line).hexdigest()


def test_the_page_states_contributions_flags_and_record(tmp_path: Path, state: StateMaker) -> None:
    folder = state(tmp_path / "state")
    page = Page(build_report(folder))
    for words in (
        "3 clients, weighted by celm, after round 4 of 6",
        "north: 50.0 % of the weight; evidence for 2 of 4 classes; "
        "score 33.3 % to 50.0 % and rank 1 over 2 rounds south:",
        "south: 40.0 % of the weight; evidence for 3 of 4 classes; "
        "score 33.3 % to 50.0 % and rank 1 over 2 rounds east:",
        "Evidence is how far the probe raises a client's logit for a class above the global model's mean logit.",
        "east: 10.0 % of the weight; no evidence for any class; "
        "score 33.3 % and rank 1 in the one round with its score; "
        "excluded in 1 round; flagged in round 4: idle: its model moved less than",
        "From round 2, the last probed round.",
        "Unchanged from round 2 on.",
        "east 1 3 no reply in time",
        "east 1 4 idle",
        "1 failed attempt: too few usable replies",
        "south: replied 2 times",
        "all 4 lines matched this chain",
        f"last line {last_digest(folder)}",
        "rule.warmup 2",
        "model.0.weight [5, 6]",
        "celm 0.1.0, flwr 1.42.0",
        "raises its own evidence. Do not pay by these weights",
    ):
        assert words in page.text, words
    pictures = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    assert len(pictures) == 4  # evidence, shares, weights, scores
    safe(page)


def evaluated(folder: Path, *lines: dict[str, Any]) -> Path:
    for line in lines:
        append_jsonl(
            folder / "evaluations.jsonl", {"schema_version": 1, "clients": None, "server": None, **line}
        )
    return folder


def test_the_page_shows_metrics_and_says_loudly_when_accuracy_collapses(
    tmp_path: Path, state: StateMaker
) -> None:
    lines = [
        {
            "round": n,
            "clients": {"accuracy": v, "loss": 2.0 - v, "by_class": [v]},
            "server": {"accuracy": 0.9},
        }
        for n, v in enumerate([0.61, 0.74, 0.79, 0.2485], start=1)
    ]
    lines[3]["excluded"] = {"east": "reports '1e+300' as 'num-examples'"}
    lines[3]["capped"] = {"north": "'num-examples' is 9000"}
    page = Page(build_report(evaluated(state(tmp_path / "state"), *lines)))
    collapsed = (
        "accuracy (evaluated by clients) collapsed in round 4: 0.2485, after 0.79 in round 3; chance is 0.25."
    )
    assert f"Warning: {collapsed}" in page.text
    assert page.text.index(collapsed) < page.text.index("Summary")
    assert ("p", "role", "alert") in page.attributes
    labels = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    assert any(
        label.startswith("Accuracy over 4 evaluations.")
        and "accuracy evaluated by clients: 0.2485; accuracy evaluated by the server: 0.9" in label
        for label in labels
    )
    assert any(label.startswith("loss over 4 evaluations.") for label in labels)
    assert "east 1 4 evaluation: reports '1e+300' as 'num-examples'" in page.text
    assert "north 1 4 evaluation: 'num-examples' is 9000" in page.text
    safe(page)


def test_without_a_collapse_there_is_no_warning(tmp_path: Path, state: StateMaker) -> None:
    lines = [{"round": n, "server": {"accuracy": 0.2 * n}} for n in range(1, 5)]
    page = Page(build_report(evaluated(state(tmp_path / "state"), *lines)))
    assert "Warning" not in page.text
    assert not [value for _, name, value in page.attributes if name == "role" and value == "alert"]
    assert "Metrics" not in Page(build_report(state(tmp_path / "other"))).text


def test_hostile_and_many_metrics_are_bounded(tmp_path: Path, state: StateMaker) -> None:
    names = [*(f"acc {name}" for name in HOSTILE), *(f"m{i}" for i in range(500))]
    lines = [
        {"round": n, "clients": dict.fromkeys(names, v), "excluded": dict.fromkeys(HOSTILE, HOSTILE[0])}
        for n, v in enumerate([0.7, 0.8, 1e-300, -1e300], start=1)
    ]
    page = Page(build_report(evaluated(state(tmp_path / "state"), *lines)))
    safe(page)
    assert "lines not shown" in page.text
    assert len([1 for tag, name, _ in page.attributes if tag == "svg" and name == "aria-label"]) <= 4 + 6
    assert len(page.text) < 40_000


def test_a_damaged_evaluation_is_named(tmp_path: Path, state: StateMaker) -> None:
    with pytest.raises(CelmError, match=r"evaluations.jsonl is damaged: line 1: round"):
        build_report(evaluated(state(tmp_path / "state"), {"round": "one"}))


def test_holdings_are_tested_over_the_probed_rounds(tmp_path: Path, state: StateMaker) -> None:
    """East missed round 3: it has two probed rounds after the first, both without evidence."""
    page = Page(build_report(state(tmp_path / "state", probed=4)))
    for words in (
        "Sole evidence 2 classes surely held by one client, without evidence of others",
        "north: 50.0 % of the weight; surely holds 2 of 4 classes; sole evidence for class 0",
        "south: 40.0 % of the weight; surely holds 2 of 4 classes, possibly 1 more; sole evidence for class 2",
        "east: 10.0 % of the weight; no evidence for any class",
    ):
        assert words in page.text, words
    safe(page)


def test_a_claim_is_about_the_clients_that_were_tested(tmp_path: Path, state: StateMaker) -> None:
    folder = state(tmp_path / "state", probed=4, client_weights={"north": 0.5, "south": 0.4, "west": 0.1})
    page = Page(build_report(folder))
    assert "sole evidence for class 0 among the clients tested" in page.text
    assert "west: 10.0 % of the weight; did not take part in any round" in page.text


def test_earnings_and_flags_are_shown_and_flags_come_first(tmp_path: Path, state: StateMaker) -> None:
    flags = {
        "east": {"idle": "its update shows no training", "excluded": "late"},
        "south": {"clipped": "its update was clipped to 3 % of its norm"},
    }
    earned = {"north": 0.625, "south": 0.25, "east": 0.0}
    page = Page(build_report(state(tmp_path / "state", flags=flags, earned=earned)))
    assert "Flagged 2 clients, in at least one round" in page.text
    assert "east 1 4 its update shows no training" in page.text
    assert "south 1 4 its update was clipped to 3 % of its norm" in page.text
    assert "earned 25.0 %; flagged in round 4: its update was clipped to 3 % of its norm" in page.text
    assert page.text.index("its update shows no training") < page.text.index("north: 50.0 % of the weight")
    assert "idle: its model moved" not in page.text  # said once
    row = page.text[page.text.index("Click a heading") :]
    assert "62.5 %" in row
    assert "0.0 %" in row
    safe(page)


def test_a_rejected_merge_has_the_reason_of_the_record(tmp_path: Path, state: StateMaker) -> None:
    page = Page(build_report(state(tmp_path / "state", merge="'0.weight' has a value above 1e30")))
    assert "4: '0.weight' has a value above 1e30" in page.text
    assert "not finite" not in page.text


def test_a_round_in_which_the_filter_refused_a_client_does_not_count_for_it(
    tmp_path: Path, state: StateMaker
) -> None:
    folder = state(tmp_path / "state")
    view = FederationView(folder)
    before = sum("south" in record.received for record in view.rounds)
    assert f" {before} – –" in Page(build_report(folder)).text  # rounds, absent, excluded
    refused = view.rounds[-1].model_copy(update={"excluded": {"south": "refused by the filter"}})
    view.rounds = [*view.rounds[:-1], refused]
    assert "south" in refused.received
    text = Page(federation_page(view)).text
    assert f" {before - 1} – 1" in text


def test_scores_with_agreement_stand_beside_those_without(tmp_path: Path, state: StateMaker) -> None:
    plain = Page(build_report(state(tmp_path / "plain")))
    assert "with agreement" not in plain.text
    folder = state(
        tmp_path / "state",
        scores={"north": 0.875, "south": 0.125, "east": 0.0},
        diagnostics={
            "agreement_scores": {"north": 0.4375, "south": 0.0625, "east": "1", "west": -1, "x": None}
        },
    )
    page = Page(build_report(folder))
    assert "with agreement" in page.text
    for figure in ("87.5 %", "12.5 %", "43.8 %", "6.2 %"):
        assert figure in page.text
        assert figure not in plain.text
    safe(page)


def test_hostile_names_and_reasons_stay_text(tmp_path: Path, state: StateMaker) -> None:
    a, b, c = HOSTILE
    idle = {"idle": [a, 7], "removed": {"x": 1}, "nonfinite": [b]}
    folder = state(
        tmp_path / "state",
        HOSTILE,
        excluded={c: a, b: c},
        diagnostics=idle,
        time=a,
        model=b,
        versions={a: b},
        merge=c,
    )
    page = Page(build_report(folder))
    safe(page)
    assert a in page.text
    assert len(page.text) < 40_000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_weights": {}}, "no clients"),
        ({"client_weights": None}, "client_weights"),
        ({"client_weights": {"a": "x"}}, "client_weights"),
        ({"evidence": {"north": [1.0]}}, "evidence"),
        ({"excluded": [1]}, "excluded"),
        ({"time": 3}, "time"),
    ],
)
def test_a_damaged_line_is_named(
    tmp_path: Path, state: StateMaker, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CelmError, match=f"rounds.jsonl is damaged: .*{words}"):
        build_report(state(tmp_path / "state", **changes))


def test_a_rule_without_evidence_has_weights(tmp_path: Path, state: StateMaker) -> None:
    folder = state(tmp_path / "state")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()][:1]
    (folder / "rounds.jsonl").write_text(json.dumps({**lines[0], "evidence": None, "scores": None}) + "\n")
    page = Page(build_report(folder))
    assert "No round was probed" in page.text
    assert "north: 50.0 % of the weight" in page.text
    safe(page)


def test_a_changed_record_has_no_report(
    tmp_path: Path, state: StateMaker, refused: Callable[..., str]
) -> None:
    folder = state(tmp_path / "state")
    text = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(text.replace("no reply in time", "it was on holiday"))
    assert "at line 3 or 4" in refused("report", folder)
    (folder / "rounds.jsonl").write_text(text)
    (folder / "settings.json").unlink()
    assert "settings.json" in refused("report", folder)
    assert not (folder / "report.html").exists()


def test_audit_verify_confirms_a_record(
    tmp_path: Path, state: StateMaker, invoke: Callable[..., Result]
) -> None:
    last = last_digest(state(tmp_path / "state"))
    done = invoke("audit-verify", "state")
    assert done.exit_code == 0, done.output
    assert "4 rounds" in done.stdout
    assert last in done.stdout
    done = invoke("audit-verify", "state", "--last", last)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"SHA-256 {last}\n")
    done = invoke("audit-verify", "state", "--last", last, "--format", "json")
    expected = {"state": str(tmp_path / "state"), "verified": True, "problems": [], "rounds": 4, "last": last}
    assert json.loads(done.stdout) == expected


def test_audit_verify_refuses_in_one_line(
    tmp_path: Path, state: StateMaker, invoke: Callable[..., Result], refused: Callable[..., str]
) -> None:
    folder = state(tmp_path / "state")
    last = last_digest(folder)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    assert "not a SHA-256" in refused("audit-verify", "state", "--last", "3f")
    assert "cannot be repeated" in refused("audit-verify", "state", "--full")
    (folder / "rounds.jsonl").write_text("".join(lines[:3]))
    assert "no line of" in refused("audit-verify", "state", "--last", last)
    done = invoke("audit-verify", "state", "--last", last, "--format", "json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["verified"] is False
    (folder / "rounds.jsonl").write_text("")
    assert "no record" in refused("audit-verify", "state")
    (folder / "rounds.jsonl").unlink()
    (folder / "names.json").write_text("{}")
    assert "no record" in refused("audit-verify", "state")
    (tmp_path / "other").mkdir()
    assert "rounds.jsonl" in refused("audit-verify", "other", "--last", last)


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


def test_the_report_needs_no_flower(tmp_path: Path, state: StateMaker) -> None:
    folder = state(tmp_path / "state")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FLOWER, "report", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, f"report: {folder / 'report.html'}\n"), done.stderr
