"""A federation that is continued with other settings, or with another celm."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from celm.base.errors import CelmError
from celm.flower import CelmStrategy, ContributionStrategy
from celm.records.federation_files import read_federation, read_state_folder
from celm.report.build import build_report
from support.pages import Page, safe
from support.small_grid import SmallGrid, arrays_of, initial, network
from support.state_folders import amendments, clients, copy_older_folder, lines_of, play, sha256, strategy


@contextmanager
def flower_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        yield
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)


# --- amendments ---------------------------------------------------------------------------------------------


def test_more_rounds_are_an_amendment_that_leaves_the_weights_frozen(tmp_path: Path) -> None:
    """5 % of 20 rounds are one round of warm-up. 5 % of 40 would be two."""
    options: dict[str, Any] = {"rule_options": {"warmup_fraction": 0.05}}
    first = play(tmp_path, 20, **options)
    grid = SmallGrid(clients())
    second = play(tmp_path, 40, grid, **options)
    assert list(first.evidence) == list(second.evidence) == [1]
    assert len({json.dumps(weights) for weights in second.contributions.values()}) == 1
    assert amendments(second)[20] == [("rounds", 20, 40)]
    assert [line for line in amendments(second) if line] == [[("rounds", 20, 40)]]
    assert second.records[20]["amendments"][0]["by"]
    # All clients are sent the same head: none is local again.
    heads = {str(arrays_of(message)["3.bias"]) for message in grid.sent[:3]}
    assert len(heads) == 1
    record = read_federation(tmp_path)
    assert record.settings.rounds == 40
    assert json.loads((tmp_path / "settings.json").read_text())["rounds"] == 20


def test_a_federation_extended_within_its_warmup_ends_it_as_agreed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rule_options": {"warmup_fraction": 0.3}}  # 3 of 10 rounds, 9 of 30

    def stop(number: int, arrays: ArrayRecord) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path, **options).start(SmallGrid(clients()), initial(), 10, evaluate_fn=stop)
    result = play(tmp_path, 30, **options)
    assert list(result.evidence) == [1, 2, 3]
    assert amendments(result)[2] == [("rounds", 10, 30)]


CHANGES: list[tuple[dict[str, Any], list[tuple[str, Any, Any]]]] = [
    (
        {"min_train_nodes": 3, "fraction_train": 0.5},
        [("fraction_train", 1.0, 0.5), ("min_train_nodes", 2, 3)],
    ),
    ({"weighted_by_key": "size"}, [("weighted_by_key", "num-examples", "size")]),
    ({"probe": {"steps": 5}}, [("probe.steps", 3, 5)]),
    ({"aggregator": "median"}, [("aggregator", None, {"name": "Median"})]),
    ({"rule_options": {"warmup": 2, "beta": 0.25}}, [("rule.beta", 0.5, 0.25)]),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES, ids=lambda value: "")
@pytest.mark.parametrize("done", [1, 3], ids=["in the warm-up", "after it"])
def test_what_changes_is_in_the_record_from_the_round_on_that_has_it(
    tmp_path: Path, changes: dict[str, Any], expected: list[tuple[str, Any, Any]], done: int
) -> None:
    play(tmp_path, done)
    play(tmp_path, done + 1)
    result = play(tmp_path, done + 2, **changes)
    found = amendments(result)
    assert sorted(found[done + 1]) == sorted([*expected, ("rounds", done + 1, done + 2)])
    assert len({line["settings"] for line in result.records}) == 3
    back = play(tmp_path, done + 3)
    undone = [(name, after, before) for name, before, after in expected]
    assert sorted(amendments(back)[-1]) == sorted([*undone, ("rounds", done + 2, done + 3)])
    read_federation(tmp_path)


def test_a_plain_federation_may_become_one_that_does_not_trust(tmp_path: Path) -> None:
    """As after an upgrade that changes the defaults: paper's evidence, no filter, then both checks."""
    trusting = {"evidence": "calibrated", "idle_check": "on-drift", "warmup": 2}
    for done in (1, 4):
        folder = tmp_path / str(done)
        before = play(folder, done)
        result = play(folder, 6, filter="clip_norm", rule_options=trusting)
        (changed,) = [line for line in amendments(result) if line]
        assert {name for name, _, _ in changed} == {"rounds", "rule.evidence", "rule.idle_check", "filter"}
        assert [i for i, line in enumerate(result.records, 1) if "idle" in line["diagnostics"]] == list(
            range(done + 1, 7)
        )
        assert result.records[: len(before.records)] == before.records
        assert sum(result.contributions[6].values()) == pytest.approx(1)


def test_the_warmup_of_the_start_stays_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    play(tmp_path, 3)
    with flower_log(caplog):
        result = play(tmp_path, 6, rule_options={"warmup": 5, "min_warmup": 4})
    assert list(result.evidence) == [1, 2]
    assert "rule.warmup is 2 there, 5 here" in caplog.text
    assert "rule.min_warmup is null there, 4 here" in caplog.text
    assert amendments(result)[3] == [("rounds", 3, 6)]
    caplog.clear()
    with flower_log(caplog):
        play(tmp_path, 6, local_heads=4)
    assert "local_heads is 2 there, 4 here" in caplog.text


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda folder: strategy(folder, seed=7), "seed is 42 there, 7 here"),
        (
            lambda folder: ContributionStrategy("fedavg", network(), (6,), 3, folder=folder),
            'rule.name is "celm" there, "fedavg" here',
        ),
        (
            lambda folder: CelmStrategy(
                nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
                (6,),
                3,
                folder=folder,
            ),
            r"model\.1\.weight is \[5, 6\] there, \[4, 6\] here",
        ),
        (
            lambda folder: CelmStrategy(network(), (2, 3), 3, folder=folder),
            r"input_shape is \[6\] there, \[2, 3\] here",
        ),
    ],
    ids=["seed", "rule", "model", "input shape"],
)
def test_what_cannot_be_amended_is_named_with_both_values(
    tmp_path: Path, make: Callable[[Path], ContributionStrategy], named: str
) -> None:
    play(tmp_path, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")}
    other = make(tmp_path)
    arrays = ArrayRecord(other.live_server.server.context.module.state_dict())
    with pytest.raises(CelmError, match=named):
        other.start(SmallGrid(clients()), arrays, num_rounds=3)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")} == before


def test_settings_that_the_rule_cannot_have_together_are_refused(tmp_path: Path) -> None:
    play(tmp_path, 1)
    options: dict[str, Any] = {
        "rule_options": {"warmup": 2, "evidence": "calibrated"},
        "probe": {"classes": 2},
    }
    with pytest.raises(CelmError, match=r"probe\.classes"):
        play(tmp_path, 3, **options)


def test_before_the_first_round_all_settings_may_change(tmp_path: Path) -> None:
    grid = SmallGrid({**clients(), "a": lambda message: None})
    with pytest.raises(CelmError, match="round 1"):
        play(tmp_path, 2, grid, min_clients=3, retries=0)
    result = play(tmp_path, 2, seed=7)
    assert amendments(result) == [[], []]
    assert json.loads((tmp_path / "settings.json").read_text())["seed"] == 7


def test_a_changed_amendment_is_found(tmp_path: Path) -> None:
    play(tmp_path, 2)
    play(tmp_path, 3)
    path = tmp_path / "rounds.jsonl"
    *earlier, last = path.read_text().splitlines()
    path.write_text("\n".join([*earlier, last.replace('"after": 3', '"after": 9')]) + "\n")
    with pytest.raises(CelmError, match=r"rounds\.jsonl was changed"):
        read_state_folder(tmp_path)
    # Without the evaluation that names the changed line, the digest of the settings is left.
    evaluations = tmp_path / "evaluations.jsonl"
    evaluations.write_text("".join(evaluations.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(CelmError, match=r"settings\.json was changed.*line 3"):
        read_state_folder(tmp_path)


def test_the_page_has_the_amendments(tmp_path: Path) -> None:
    play(tmp_path, 2)
    play(tmp_path, 3, filter="clip_norm")
    page = Page(build_report(tmp_path))
    assert "2 amendments" in page.text
    assert "3 rounds 2 3" in page.text
    assert "after round 3 of 3" in page.text
    assert "ClipNorm" in page.text
    safe(page)


# --- an older folder ----------------------------------------------------------------------------------------


def test_a_folder_of_an_older_celm_goes_on_without_an_amendment(tmp_path: Path) -> None:
    folder = copy_older_folder(tmp_path)
    kept = (folder / "rounds.jsonl").read_bytes()
    options: dict[str, Any] = {"rule_options": {"warmup_fraction": 0.1}, "min_clients": 3}
    judged: list[int] = []

    def judge(number: int, arrays: ArrayRecord) -> MetricRecord:
        judged.append(number)
        return MetricRecord({"accuracy": 0.5})

    result = strategy(folder, **options).start(SmallGrid(clients()), initial(), 20, evaluate_fn=judge)
    assert judged == list(range(3, 21))
    assert (folder / "rounds.jsonl").read_bytes().startswith(kept)
    assert all(not line.get("amendments") for line in result.records)
    assert result.contributions == play(None, 20, **options).contributions
    assert sorted(result.records[3]["keys"]) == ["a", "b", "c"]
    read_state_folder(folder, sha256((folder / "evaluations.jsonl").read_text().splitlines()[-1]))
    assert "after round 20 of 20" in Page(build_report(folder)).text
    # The first evaluations have no digest; those since are chained, and rounds name them.
    evaluations = folder / "evaluations.jsonl"
    assert ["previous" in line for line in lines_of(evaluations)] == [False] * 3 + [True] * 18
    assert lines_of(evaluations)[3]["previous"] == sha256(evaluations.read_text().splitlines()[2])


def test_a_new_key_of_sizes_amends_the_folder_of_an_older_celm(tmp_path: Path) -> None:
    folder = copy_older_folder(tmp_path)
    assert "weighted_by_key" not in (folder / "settings.json").read_text()
    options: dict[str, Any] = {"rule_options": {"warmup_fraction": 0.1}, "weighted_by_key": "size"}
    result = play(folder, 20, **options)
    expected = [("weighted_by_key", "num-examples", "size")]
    assert [line for line in amendments(result) if line] == [expected]
    read_federation(folder)


def test_a_setting_that_an_older_celm_did_not_have_takes_its_default(tmp_path: Path) -> None:
    """As settings.json would be from before `rule.idle_check`, `probe.precision` and the sampling of nodes."""
    folder = copy_older_folder(tmp_path)
    settings = json.loads((folder / "settings.json").read_text())
    for table, key in (("rule", "idle_check"), ("rule", "min_warmup"), ("probe", "precision")):
        del settings[table][key]
    (folder / "settings.json").write_text(json.dumps(settings))
    lines = lines_of(folder / "rounds.jsonl")
    with (folder / "rounds.jsonl").open("w") as file:
        previous = "0" * 64
        for line in lines:
            text = json.dumps({**line, "settings": sha256(json.dumps(settings)), "previous": previous})
            previous = sha256(text)
            file.write(text + "\n")
    options = {"warmup_fraction": 0.1, "idle_check": "on-drift"}
    result = play(folder, 20, rule_options=options)
    assert [line for line in amendments(result) if line] == [[("rule.idle_check", "never", "on-drift")]]


def test_a_state_of_a_newer_celm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celm.live.state_store._STATE_VERSION", 2)
    play(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(CelmError, match=r"schema_version 2.*newer celm"):
        play(tmp_path, 2)
