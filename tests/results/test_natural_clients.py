"""The page of natural clients shows what its runs say."""

from __future__ import annotations

import importlib.util
from itertools import combinations, permutations
from math import factorial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "results" / "natural"


@pytest.fixture(scope="module")
def summarise() -> ModuleType:
    spec = importlib.util.spec_from_file_location("summarise_natural", FOLDER / "summarise.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_every_table_of_its_script(summarise: ModuleType) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for title, lines in summarise.tables().items():
        assert "\n".join(lines) in page, title


@pytest.mark.parametrize("dataset", ["heart", "fsdd"])
def test_shapley_values_are_mean_marginal_gains_over_all_orders(summarise: ModuleType, dataset: str) -> None:
    truths: list[dict[str, Any]] = summarise.load_truth(dataset)
    assert [truth["seed"] for truth in truths] == [42, 43, 44, 45, 46]
    for truth in truths:
        clients = list(truth["shapley"])
        worth = {frozenset[int](): 0.0} | {
            frozenset(map(int, key.split("+"))): value for key, value in truth["worth"].items()
        }
        assert len(worth) == sum(1 for size in range(len(clients) + 1) for _ in combinations(clients, size))
        gains = dict.fromkeys(clients, 0.0)
        for order in permutations(range(len(clients))):
            for position, member in enumerate(order):
                before = frozenset(order[:position])
                gains[clients[member]] += worth[before | {member}] - worth[before]
        expected = {client: gain / factorial(len(clients)) for client, gain in gains.items()}
        assert truth["shapley"] == pytest.approx(expected, abs=1e-9)
