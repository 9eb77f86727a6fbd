"""The table that the strategy logs at its end, from hand-made records."""

from __future__ import annotations

from typing import Any

from celm.live.summary_table import format_contributions

WEIGHTS = {"north": 0.25, "south": 0.5, "late": 0.25}


def records(count: int) -> list[dict[str, Any]]:
    """Return probed rounds. In the first, a member shows evidence for a class that nobody holds."""
    first = {"north": [1.0, 0.2, 0.9], "south": [0.0, 1.0, 0.0]}
    later = {"north": [1.0, 0.0, 0.0], "south": [0.0, 1.0, 0.05]}
    return [
        {
            "client_weights": WEIGHTS,
            "earned": {"north": 0.2, "south": 0.5, "late": 0.0},
            "evidence": later if number else first,
            "diagnostics": {},
            "flags": {},
        }
        for number in range(count)
    ]


def test_one_round_gives_evidence_but_no_claim() -> None:
    text = format_contributions(records(1), None)
    assert text.splitlines()[0].split("  ") == ["client", "weight", "earned", "evidence for (not tested)"]
    assert "north   25.0 %  20.0 %  3 of 3: 0 1 2" in text
    assert "sole" not in text
    assert "surely" not in text


def test_several_rounds_say_what_is_sure() -> None:
    lines = format_contributions(records(3), None).splitlines()
    assert lines[:4] == [
        "client  weight  earned  classes held",
        "south   50.0 %  50.0 %  surely 1 of 3: 1; possibly 2; sole evidence for 1",
        "north   25.0 %  20.0 %  surely 1 of 3: 0; sole evidence for 0",
        "late    25.0 %   0.0 %  not tested",
    ]
