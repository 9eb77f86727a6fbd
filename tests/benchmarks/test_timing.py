"""Cases take turns, and what is told of them is right."""

from __future__ import annotations

import time
from statistics import median

from hypothesis import given
from hypothesis import strategies as st


def test_every_case_is_played_once_a_turn_and_every_other_turn_backwards() -> None:
    from timing import interleaved

    played: list[str] = []
    cases = {name: lambda name=name: played.append(name) or name.upper() for name in "abc"}
    watched: list[tuple[str, str]] = []
    found = interleaved(cases, 3, lambda name, result: watched.append((name, result)))
    assert "".join(played) == "abccbaabc"
    assert found == {name: [name.upper()] * 3 for name in "abc"}
    assert watched == [(name, name.upper()) for name in played]


def test_a_timed_call_gives_its_result_and_takes_as_long_as_it_sleeps() -> None:
    from timing import timed

    def sleep(seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    result, seconds = timed(sleep, 0.02)
    assert result == "slept"
    assert seconds >= 0.02


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_the_spread_holds_the_median_and_every_value(values: list[float]) -> None:
    from timing import median_and_spread

    told = median_and_spread(values)
    assert told["median"] == median(values)
    assert all(told["least"] <= value <= told["most"] for value in values)
    assert {told["least"], told["most"]} <= set(values)
    assert told["count"] == len(values)


def test_the_machine_has_a_name_and_at_least_one_core() -> None:
    import torch

    from timing import describe_machine

    told = describe_machine()
    assert told["cpu"]
    assert 1 <= told["usable_cores"] <= told["cores"]
    assert told["torch"] == torch.__version__
    assert len(told["load_before"]) == 3
