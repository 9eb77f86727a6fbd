"""What a subclass changes in the config of a round survives retries and restarts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from celm.flower import ContributionStrategy
from celm.flower.round_config import RoundConfig
from support.small_grid import Client, SmallGrid, config_of, initial, learner, network


class Decaying(ContributionStrategy):
    """The usual schedule of Flower's examples, for training and evaluation."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["lr"] *= 0.5  # type: ignore[operator,assignment]
        config["seen"].append(server_round)  # type: ignore[union-attr,arg-type]
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["threshold"] += 1  # type: ignore[operator,assignment]
        return super().configure_evaluate(server_round, arrays, config, grid)


def play(
    grid: SmallGrid, folder: Path | None = None, rounds: int = 5, lr: float = 0.64, **start: Any
) -> None:
    strategy = Decaying("fedavg", network(), (6,), 3, folder=folder, retry_wait=0.0, retries=2)
    train = ConfigRecord({"lr": lr, "seen": [0], "key": b"\x00"})
    evaluate = ConfigRecord({"threshold": 10})
    strategy.start(grid, initial(), rounds, train_config=train, evaluate_config=evaluate, **start)
    assert (train["lr"], train["seen"], evaluate["threshold"]) == (
        lr,
        [0],
        10,
    )  # the caller's own stay as they are


def sent(grid: SmallGrid, kind: str, key: str) -> dict[int, Any]:
    """Round to what clients were sent last."""
    configs = [config_of(message) for message in grid.sent if message.metadata.message_type == kind]
    return {int(config["server-round"]): config[key] for config in configs}  # type: ignore[arg-type]


def clients() -> dict[str, Client]:
    return {"a": learner(0.1), "b": learner(0.3)}


EXPECTED_LR = {n: 0.64 * 0.5**n for n in range(1, 6)}
EXPECTED_THRESHOLD = {n: 10 + n for n in range(1, 6)}


def test_an_uninterrupted_run_is_what_flower_itself_does() -> None:
    grid = SmallGrid(clients())
    play(grid)
    assert sent(grid, "train", "lr") == EXPECTED_LR
    assert sent(grid, "train", "seen")[5] == [0, 1, 2, 3, 4, 5]
    assert sent(grid, "evaluate", "threshold") == EXPECTED_THRESHOLD


def test_a_failed_attempt_does_not_count() -> None:
    failures = iter([True, True, *[False] * 20])
    grid = SmallGrid(clients())
    grid.clients["a"] = lambda message: None if next(failures) else learner(0.1)(message)
    play(grid)
    assert sent(grid, "train", "lr") == EXPECTED_LR
    assert sent(grid, "train", "seen")[5] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_resumed_server_follows_the_same_schedule(tmp_path: Path, kind: str) -> None:
    """Killed in round 3, while clients train or while they evaluate."""

    def dying(message: Message) -> Any:
        if config_of(message)["server-round"] == 3 and message.metadata.message_type == kind:
            raise KeyboardInterrupt
        return learner(0.3)(message)

    first, second = SmallGrid({**clients(), "b": dying}), SmallGrid(clients())
    with pytest.raises(KeyboardInterrupt):
        play(first, tmp_path)
    play(second, tmp_path)
    for name, key, expected in (("train", "lr", EXPECTED_LR), ("evaluate", "threshold", EXPECTED_THRESHOLD)):
        assert sent(first, name, key) | sent(second, name, key) == expected
        assert sent(second, name, key).items() <= expected.items()
    assert sent(second, "train", "seen")[5] == [0, 1, 2, 3, 4, 5]
    assert config_of(second.sent[-1]).get("key") is None
    assert sent(second, "train", "key")[5] == b"\x00"


def test_a_value_that_the_operator_changes_is_used_as_given(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(SmallGrid(clients()), tmp_path, evaluate_fn=stop_after(2))
    grid = SmallGrid(clients())
    play(grid, tmp_path, lr=8.0)
    assert sent(grid, "train", "lr") == {3: 4.0, 4: 2.0, 5: 1.0}
    assert sent(grid, "train", "seen")[3] == [0, 1, 2, 3]


def stop_after(number: int) -> Any:
    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == number:
            raise KeyboardInterrupt

    return evaluate


def test_every_kind_of_value_is_restored_and_removed_keys_stay_removed() -> None:
    given = ConfigRecord({"gone": 1, "kept": "x", "n": 1})
    changed: dict[str, Any] = {
        "kept": "x",
        "n": 2**40,
        "bytes": b"\xff\x00",
        "many": [b"a", b""],
        "flags": [True, False],
        "inf": math.inf,
        "third": 1 / 3,
        "none": [],
        "yes": True,
    }
    saved = RoundConfig.restore("c", given, None).to_json(ConfigRecord(changed))
    restored = RoundConfig.restore("c", given, saved)
    assert dict(restored.current) == changed
    assert type(restored.current["yes"]) is bool
    assert dict(restored.given) == dict(given)
    assert RoundConfig.restore("c", given, None).to_json(given) is None
