"""Contribution estimation in live federations: drop-in strategies for Flower (extra `flower`).

    from celm.flower import CelmStrategy

    strategy = CelmStrategy(model, input_shape=(1, 28, 28), classes=10, folder="/var/lib/celm/consortium")
    result = strategy.start(grid, initial_arrays, num_rounds=100)

Clients need no change. `configure_train` makes the messages; `aggregate_train` validates the replies, computes
weights and aggregates.
"""

from __future__ import annotations

from importlib.util import find_spec

from celm.base.errors import CelmError

if find_spec("flwr") is None:
    raise CelmError("celm.flower needs Flower", "pip install 'celm[flower]'")

from flwr.common.logger import FLOWER_LOGGER

from celm.flower.result import ContributionResult
from celm.flower.strategy import CelmStrategy, ContributionStrategy
from celm.live.logger import use_logger
from celm.operations.alerts import Command, Webhook

use_logger(FLOWER_LOGGER)

__all__ = ["CelmStrategy", "Command", "ContributionResult", "ContributionStrategy", "Webhook"]
