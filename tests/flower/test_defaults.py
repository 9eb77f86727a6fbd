"""What members and operators get by default: the preset trust, earnings, and flags in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import ArrayRecord, Message

from celm.flower import CelmStrategy, ContributionStrategy
from celm.rules.celm import Celm
from celm.rules.robust.clip_norm import ClipNorm
from support.small_grid import Client, SmallGrid, arrays_of, initial, learner, network, reply


@pytest.fixture
def flower_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.DEBUG, logger="flwr"):
        yield caplog


def strategy(**settings: Any) -> CelmStrategy:
    return CelmStrategy(
        network(), (6,), 3, **{"fraction_evaluate": 0.0, "retry_wait": 0.0, "probe": {"steps": 3}, **settings}
    )


def unchanged(message: Message) -> Message:
    return reply(message, ArrayRecord(arrays_of(message)))


def broken(message: Message) -> Message:
    nan = {name: torch.full_like(tensor, torch.nan) for name, tensor in arrays_of(message).items()}
    return reply(message, ArrayRecord(nan))


def misshapen(message: Message) -> Message:
    return reply(message, ArrayRecord({name: torch.zeros(2) for name in arrays_of(message)}))


def clients(**others: Client) -> dict[str, Client]:
    return {"a": learner(0.1), "b": learner(-0.2), "c": learner(0.3), **others}


def test_trust_is_the_default_of_both_strategies() -> None:
    rule = strategy().live_server.server.rule
    assert isinstance(rule, Celm)
    assert (rule.evidence, rule.idle_check, rule.min_warmup) == ("calibrated", "on-drift", 5)
    assert strategy().live_server.server.filter == ClipNorm()
    other = ContributionStrategy("fedavg", network(), (6,), 3).live_server.server
    assert other.filter == ClipNorm()


def test_without_a_preset_the_rule_is_as_printed() -> None:
    server = strategy(preset=None).live_server.server
    assert server.rule == Celm()
    assert server.filter is None


def test_explicit_settings_take_precedence_over_trust() -> None:
    server = strategy(rule_options={"evidence": "paper", "warmup": 2}, filter="krum").live_server.server
    assert (server.rule.evidence, server.rule.warmup, server.rule.idle_check) == ("paper", 2, "on-drift")  # type: ignore[attr-defined]
    assert type(server.filter).__name__ == "Krum"


def test_a_short_federation_warms_up_for_five_rounds() -> None:
    play = strategy()
    result = play.start(SmallGrid(clients()), initial(), num_rounds=7)
    assert [line["round"] for line in result.records if line["evidence"]] == [1, 2, 3, 4, 5]


def test_a_federation_that_is_too_short_for_its_warm_up_says_so(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    strategy().start(SmallGrid(clients()), initial(), num_rounds=3)
    warnings = [line.getMessage() for line in flower_log.records if line.levelno == logging.WARNING]
    assert any("warm-up" in line and "3" in line and "5" in line for line in warnings), warnings


@pytest.mark.parametrize("preset", ["trust", None])
@pytest.mark.parametrize("rule", ["celm", "fedavg", "shapfed"])
def test_a_member_that_never_delivers_has_no_weight_and_earns_nothing(rule: str, preset: str | None) -> None:
    play = ContributionStrategy(
        rule, network(), (6,), 3, preset=preset, probe={"steps": 3}, fraction_evaluate=0.0
    )
    result = play.start(SmallGrid(clients(d=broken)), initial(), num_rounds=3)
    for number in (1, 2, 3):
        assert result.contributions[number].get("d", 0.0) == 0.0
        assert sum(result.contributions[number].values()) == pytest.approx(1)
    assert result.earned["d"] == 0.0
    assert 0 < sum(result.earned.values()) <= 1 + 1e-9


@pytest.mark.parametrize("preset", ["trust", None])
def test_an_upload_equal_to_the_message_is_named_in_the_same_round(
    preset: str | None, flower_log: pytest.LogCaptureFixture
) -> None:
    play = strategy(preset=preset)
    result = play.start(SmallGrid(clients(d=unchanged)), initial(), num_rounds=2)
    named = {name for line in result.records for name, kinds in line["flags"].items() if "unchanged" in kinds}
    assert named == {"d"}
    assert "unchanged" in result.records[0]["flags"]["d"]
    assert result.earned["d"] == 0.0
    lines = [line.getMessage() for line in flower_log.records if "(unchanged)" in line.getMessage()]
    assert len(lines) == 1, "once per change"
    assert lines[0].startswith("round 1: d ")


def test_a_flag_is_logged_again_after_it_was_gone(flower_log: pytest.LogCaptureFixture) -> None:
    """Also across a restart, by the record."""
    rounds = iter((broken, broken, learner(0.3), broken))
    result = strategy(preset=None).start(
        SmallGrid(clients(d=lambda message: next(rounds)(message))), initial(), num_rounds=4
    )
    assert [bool(line["flags"]) for line in result.records] == [True, True, False, True]
    texts = [line.getMessage() for line in flower_log.records if "(excluded)" in line.getMessage()]
    assert [text.split(":")[0] for text in texts] == ["round 1", "round 4"]
    assert any("round 3: d is no longer flagged" in line.getMessage() for line in flower_log.records)


def test_a_flag_is_logged_again_if_its_reason_changes(
    tmp_path: Path, flower_log: pytest.LogCaptureFixture
) -> None:
    """Also if the server is restarted in between."""
    rounds = iter((broken, broken, misshapen, misshapen, misshapen, broken))
    members = clients(d=lambda message: next(rounds)(message))
    for last in (2, 4, 6):
        strategy(preset=None, folder=tmp_path).start(SmallGrid(members), initial(), num_rounds=last)
    texts = [line.getMessage() for line in flower_log.records if "(excluded)" in line.getMessage()]
    assert [text.split(":")[0] for text in texts] == ["round 1", "round 3", "round 6"]
    assert ["not finite" in text for text in texts] == [True, False, True]
    assert "expected shape" in texts[1]


def test_numbers_that_vary_do_not_repeat_a_flag(flower_log: pytest.LogCaptureFixture) -> None:
    """An update that is longer in each round is clipped to another part of its norm in each."""
    shifts = iter((10.0, 300.0, 7e6))
    members = clients(d=lambda message: learner(next(shifts))(message))
    result = ContributionStrategy("fedavg", network(), (6,), 3, fraction_evaluate=0.0).start(
        SmallGrid(members), initial(), num_rounds=3
    )
    assert len({line["flags"]["d"]["clipped"] for line in result.records}) == 3
    texts = [line.getMessage() for line in flower_log.records if "(clipped)" in line.getMessage()]
    assert [text.split(":")[0] for text in texts] == ["round 1"]


def test_every_round_logs_weights_and_metrics_and_the_end_the_table(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    members = {name: learner(shift, loss=0.5) for name, shift in (("a", 0.1), ("b", -0.2), ("c", 0.3))}
    strategy().start(SmallGrid(members), initial(), num_rounds=2)
    lines = [(line.levelno, line.getMessage()) for line in flower_log.records]
    weights = [text for level, text in lines if "Weights: " in text and level == logging.INFO]
    assert len(weights) == 2
    assert all(name in weights[0] for name in ("a ", "b ", "c "))
    assert sum("Aggregated MetricRecord" in text for _, text in lines) == 2
    assert {level for level, text in lines if "Time: " in text} == {logging.DEBUG}
    assert any("earned" in text for _, text in lines[-6:])
