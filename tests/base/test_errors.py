"""The one error a user can cause."""

from __future__ import annotations

from celm.base.errors import CelmError, suggest_name


def test_a_hint_follows_the_message_on_the_same_line() -> None:
    assert str(CelmError("unknown rule 'x'")) == "unknown rule 'x'"
    assert str(CelmError("unknown rule 'x'", "one of: celm")) == "unknown rule 'x' (one of: celm)"


def test_nearest_names_one_close_name_or_all() -> None:
    assert suggest_name("fedagv", ["fedavg", "celm"]) == "did you mean 'fedavg'?"
    assert suggest_name("zzz", ["fedavg", "celm"]) == "one of: celm, fedavg"
