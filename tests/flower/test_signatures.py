"""What editors and type checkers are told about the strategies' arguments."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from celm.flower import CelmStrategy, ContributionStrategy
from support.small_grid import network


def test_the_two_strategies_have_the_same_arguments_and_defaults_but_for_the_rule() -> None:
    general = dict(inspect.signature(ContributionStrategy).parameters)
    assert next(iter(general)) == "rule"
    del general["rule"]
    own = inspect.signature(CelmStrategy).parameters
    assert dict(own) == general
    assert {"num_rounds", "folder", "fraction_train", "probe"} <= set(own)
    assert CelmStrategy(network(), (6,), 3).live_server.rule_name == "celm"


def test_a_subclass_extends_the_constructor_as_usual() -> None:
    class Own(CelmStrategy):
        def __init__(self, extra: int) -> None:
            super().__init__(network(), (6,), classes=3, seed=7)
            self.extra = extra

    assert Own(5).live_server.server.context.seed == 7
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'classes'"):
        CelmStrategy(network(), (6,))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values"):
        CelmStrategy(network(), (6,), 3, rule="fedavg")
