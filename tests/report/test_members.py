"""What a page tells its members: order, ranks over the rounds, classes, absences, and how to verify it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from celm.core.class_holders import ClassClaims
from celm.data.registry import datasets, splits
from celm.models.registry import models
from celm.report.audit_page import audit_page
from celm.report.build import build_report
from celm.report.class_map import audit_map, claims_map
from celm.report.plain_names import _PLAIN_NAMES, plain_name
from celm.report.rank_stability import rank_stability
from support.many_clients import large_audit
from support.pages import HOSTILE, Page, safe

StateMaker = Callable[..., Path]


def rows_of(page: str, label: str) -> list[str]:
    """Return the first cells of the rows of the table with this label."""
    table = page.split(f'aria-label="{label}"')[1].split("</table>")[0]
    return re.findall(r'<th scope="row"><bdi[^>]*>([^<]*)</bdi>', table)


def test_tables_and_figures_begin_with_the_heaviest_client(
    tmp_path: Path, state: StateMaker, handmade: Callable[..., Path]
) -> None:
    weights = {"east": 0.6, "north": 0.1, "south": 0.3}
    page = build_report(state(tmp_path / "state", probed=4, client_weights=weights))
    assert rows_of(page, "Contributions") == ["east", "south", "north"]
    assert rows_of(page, "Classes of each client") == ["east", "south", "north"]
    assert rows_of(page, "Evidence by client and class") == ["east", "south", "north"]
    assert rows_of(build_report(handmade(tmp_path / "run")), "Contributions") == [
        "client-1",
        "client-0",
        "client-2",
    ]
    document = large_audit(4)
    document["weights"] = {"site-0000": 0.1, "site-0001": 0.2, "site-0002": 0.4, "site-0003": 0.3}
    names = ["site-0002", "site-0003", "site-0001", "site-0000"]
    assert rows_of(audit_page(document), "Contributions") == names


def test_shares_are_explained_where_weights_follow_them(tmp_path: Path, state: StateMaker) -> None:
    words = "So a client with less evidence can weigh more, if few others have evidence for its classes."
    folder = state(tmp_path / "state")
    assert words in Page(build_report(folder)).text
    assert words in Page(audit_page(large_audit(4))).text


def test_a_run_of_another_rule_does_not_explain_its_weights_by_shares(
    tmp_path: Path, handmade: Callable[..., Path]
) -> None:
    text = Page(build_report(handmade(tmp_path / "run", rule="fedavg"))).text
    assert "can weigh more" not in text
    assert "weight the server, rule fedavg the updates, as this rule prescribes" in text


@pytest.mark.parametrize("kind", ["run", "federation", "audit"])
def test_every_column_says_who_computed_it_from_what(
    tmp_path: Path, state: StateMaker, handmade: Callable[..., Path], kind: str
) -> None:
    if kind == "audit":
        page = audit_page(large_audit(4))
    else:
        page = build_report((handmade if kind == "run" else state)(tmp_path / kind))
    head = page.split('aria-label="Contributions"')[1].split("</thead>")[0]
    headings = re.findall(r'data-sort="[a-z]+">([^<]*)</th>', head)
    table = page.split('aria-label="How each number is computed"')[1].split("</table>")[0]
    explained = re.findall(
        r'<tr><th scope="row">([^<]*)</th><td class="name">[^<]+</td><td class="name">[^<]+</td>', table
    )
    assert headings[0] == "client"
    assert set(headings[1:]) <= set(explained)
    assert "share" in explained


def test_ranks_over_the_rounds_have_their_range_and_correlation() -> None:
    rounds = [
        {"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.0},
        {"a": 0.5, "b": 0.2, "c": 0.3, "d": 0.0},
        {"a": 0.1, "b": 0.2, "c": 0.3},
    ]
    records: list[dict[str, Any]] = [
        {"round": n, "scores": scores} for n, scores in zip((1, 2, 4), rounds, strict=True)
    ]
    records.insert(2, {"round": 3, "scores": None})
    stability = rank_stability(records)
    assert {client: history.ranks for client, history in stability.histories.items()} == {
        "a": (1, 3),
        "b": (2, 3),
        "c": (1, 3),
        "d": (4, 4),
    }
    assert stability.histories["d"].num_rounds == 2
    expected = {
        (1, 2): spearmanr([0.5, 0.3, 0.2, 0.0], [0.5, 0.2, 0.3, 0.0])[0],
        (2, 4): spearmanr([0.5, 0.2, 0.3], [0.1, 0.2, 0.3])[0],
    }
    assert stability.correlations == pytest.approx(expected)
    assert "the lowest is -0.50, from round 2 to round 4" in stability.describe()


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([{"a": 0.5, "b": 0.5}], "Fewer than two rounds have scores"),
        ([{"a": 0.6, "b": 0.4}] * 2, "too few clients, or their scores are equal"),
        ([dict.fromkeys("abc", 1 / 3)] * 2, "too few clients, or their scores are equal"),
        (
            [{"a": 0.5, "b": 0.3, "c": 0.2}] * 2,
            "correlation of 1.00 in the median of 1 pair of rounds. 1 means",
        ),
    ],
)
def test_stability_is_not_claimed_without_data(rounds: list[dict[str, float]], words: str) -> None:
    records = [{"round": n, "scores": scores} for n, scores in enumerate(rounds, 1)]
    assert words in rank_stability(records).describe()


def test_the_map_of_classes_marks_what_is_sure() -> None:
    claims = ClassClaims(3, {"a": (0, 1), "b": ()}, {"a": (), "b": (1, 2)}, {0: "a"})
    drawn = claims_map(claims, ["x", "y", "z"], ["c", "b", "a"])
    assert drawn is not None
    assert drawn.rows == {"b": ["–", "P", "P"], "a": ["S*", "S", "–"]}
    assert drawn.untested == ["c"]
    assert [(count.surely, count.possibly, count.none) for count in drawn.counts] == [
        (1, 0, 1),
        (1, 1, 0),
        (0, 1, 1),
    ]
    same = audit_map(["x", "y", "z"], ["b", "a"], {"a": ["x", "y"], "b": []}, {"b": ["y", "z"]}, {"x": "a"})
    assert same is not None
    assert same.rows == drawn.rows
    assert claims_map(None, ["x"], ["a"]) is audit_map(["x"], ["a"], None, None, {}) is None


def test_the_page_has_the_map_with_its_meaning(tmp_path: Path, state: StateMaker) -> None:
    page = Page(build_report(state(tmp_path / "state", probed=4)))
    assert "S surely holds, P possibly holds, – no evidence. S* marks sole evidence" in page.text
    assert "client 0 1 2 3 north S* S – – south – S S* P east – – – –" in page.text
    assert "Who holds which class" not in Page(build_report(state(tmp_path / "few"))).text


def test_absent_and_excluded_members_are_listed(tmp_path: Path, state: StateMaker) -> None:
    page = Page(build_report(state(tmp_path / "state", absent=["east"], excluded={"south": "late"})))
    assert "Absent and excluded" in page.text
    assert "east 1 4 not connected" in page.text
    assert "south 1 4 late" in page.text
    assert "not connected when" not in Page(build_report(state(tmp_path / "other"))).text


def test_members_learn_what_scores_do_not_mean_and_how_to_verify(tmp_path: Path, state: StateMaker) -> None:
    text = Page(build_report(state(tmp_path / "state"))).text
    for words in (
        "A low weight is not misconduct.",
        "does not compare with that of another federation",
        "It is not the loss of accuracy without the client, and not a price.",
        "celm audit-verify STATE_FOLDER --last DIGEST",
        "Use the digest that you received after round 4, not the one on this page.",
        "It does not show that the server computed honestly.",
    ):
        assert words in text, words
    files = [{"path": "a.pt", "role": "client", "client": "a", "size": 1, "sha256": "f" * 64}]
    assert "celm audit-verify AUDIT_FOLDER --full" in Page(audit_page(large_audit(4), files)).text


def test_flags_of_a_run_come_first(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    folder = handmade(tmp_path / "run")
    path = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["flags"] = {"client-0": {"idle": "its update shows no training"}}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = Page(build_report(folder)).text
    assert "client-0 1 2 its update shows no training" in text.split("Summary Evidence is")[0]
    assert "flagged in round 2: its update shows no training" in text


def test_hostile_names_stay_text_in_map_and_tables(tmp_path: Path, state: StateMaker) -> None:
    page = build_report(state(tmp_path / "state", HOSTILE, probed=4, absent=[HOSTILE[1]]))
    safe(Page(page))
    assert "<script>alert" not in page


def test_every_component_of_a_title_has_a_plain_name() -> None:
    for registry in (splits, models, datasets):
        assert set(registry.builtins) <= set(_PLAIN_NAMES)
    assert plain_name("my_split") == "my_split"
